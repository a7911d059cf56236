//! Finds the kernels in a source, and their parameters.
//!
//! A kernel is `extern "C" __global__ void [__launch_bounds__(...)] name(parameters)`. Parameters are values
//! of, or pointers to, a few scalar types. Launches are checked against them, so that a wrong argument is an
//! error rather than a corrupted result.

/// Parameter types in the source, and the corresponding variants of `device::Scalar`.
const SCALARS: [(&str, &str); 10] = [
    ("bf16", "Bf16"),
    ("f16", "F16"),
    ("float", "F32"),
    ("u8", "U8"),
    ("i16", "I16"),
    ("int", "I32"),
    ("i32", "I32"),
    ("u32", "U32"),
    ("i64", "I64"),
    ("u64", "U64"),
];

/// Types of `device.cuh` by the 16-bit type of the compilation: in bf16, and in f16.
const GENERIC: [(&str, [&str; 2]); 2] = [("scalar_t", ["Bf16", "F16"]), ("remainder_t", ["I16", "F32"])];

/// A kernel's parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    pub name: String,
    /// The variant of `device::Scalar`: its type, or the type it points to.
    pub scalar: &'static str,
    /// True if it is a pointer.
    pub pointer: bool,
    /// The variant where the file is compiled for f16, if that is another.
    pub in_f16: Option<&'static str>,
}

/// A kernel's name and parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    /// The name, unique in the crate.
    pub name: String,
    /// The parameters in order.
    pub parameters: Vec<Parameter>,
}

impl Signature {
    /// The kernel as the file has it when compiled for f16; `None` if that is no other.
    pub fn in_f16(&self) -> Option<Signature> {
        let of = |parameter: &Parameter| Parameter {
            scalar: parameter.in_f16.unwrap_or(parameter.scalar),
            in_f16: None,
            ..parameter.clone()
        };
        self.parameters.iter().any(|parameter| parameter.in_f16.is_some()).then(|| Signature {
            name: format!("{}_f16", self.name),
            parameters: self.parameters.iter().map(of).collect(),
        })
    }
}

/// The kernels of an expanded source, in order.
///
/// # Errors
/// A message that names the kernel that breaks the convention.
pub fn signatures(text: &str) -> Result<Vec<Signature>, String> {
    let text = without_comments(text);
    let mut found = Vec::new();
    let mut rest = text.as_str();
    while let Some(at) = rest.find("__global__") {
        let before = rest[..at].trim_end();
        let after = &rest[at + "__global__".len()..];
        rest = after;
        if line_start(before).starts_with('#') {
            continue;
        }
        let head: String =
            after.chars().take(60).collect::<String>().split_whitespace().collect::<Vec<_>>().join(" ");
        if !before.ends_with("extern \"C\"") {
            return Err(format!("__global__ {head}: declare a kernel as extern \"C\" __global__ void"));
        }
        let mut after = after.trim_start();
        after =
            after.strip_prefix("void").ok_or_else(|| format!("__global__ {head}: not void"))?.trim_start();
        if let Some(bounds) = after.strip_prefix("__launch_bounds__") {
            let close = bounds.find(')').ok_or_else(|| format!("__global__ {head}: no end"))?;
            after = bounds[close + 1..].trim_start();
        }
        let (name, list) =
            after.split_once('(').ok_or_else(|| format!("__global__ {head}: no parameters"))?;
        let (list, _) = list.split_once(')').ok_or_else(|| format!("__global__ {head}: no end"))?;
        let name = name.trim().to_owned();
        let parameters = list
            .split(',')
            .filter(|text| !text.trim().is_empty())
            .map(|text| parameter(text).ok_or_else(|| unknown(&name, text)))
            .collect::<Result<Vec<_>, _>>()?;
        found.push(Signature { name, parameters });
    }
    Ok(found)
}

/// An expanded source for f16: the same text with other names of kernels.
pub fn in_f16(text: &str, signatures: &[Signature]) -> String {
    let renamed = signatures.iter().map(|Signature { name, .. }| format!("#define {name} {name}_f16\n"));
    "#define SCALAR_F16\n".to_owned() + &renamed.collect::<String>() + text
}

fn unknown(kernel: &str, parameter: &str) -> String {
    let parameter = parameter.split_whitespace().collect::<Vec<_>>().join(" ");
    format!(
        "{kernel}: parameter '{parameter}' is no scalar_t, bf16, f16, float, u8, i16, int, u32, i64 or u64, nor a pointer to one"
    )
}

fn line_start(before: &str) -> &str {
    before.rsplit('\n').next().unwrap_or(before).trim_start()
}

fn parameter(text: &str) -> Option<Parameter> {
    let spaced = text.replace('*', " * ");
    let words: Vec<&str> =
        spaced.split_whitespace().filter(|word| !matches!(*word, "const" | "__restrict__")).collect();
    let (name, types) = words.split_last()?;
    let (scalar, stars) = types.split_first()?;
    let pointer = match stars {
        [] => false,
        ["*"] => true,
        _ => return None,
    };
    let name = (*name).to_owned();
    if let Some((_, [scalar, in_f16])) = GENERIC.into_iter().find(|(word, _)| word == scalar) {
        return Some(Parameter { name, scalar, pointer, in_f16: Some(in_f16) });
    }
    let (_, scalar) = SCALARS.into_iter().find(|(word, _)| word == scalar)?;
    Some(Parameter { name, scalar, pointer, in_f16: None })
}

fn without_comments(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("//").into_iter().chain(rest.find("/*")).min() {
        out.push_str(&rest[..at]);
        let comment = &rest[at..];
        let (end, skip) = if comment.starts_with("//") { ("\n", 0) } else { ("*/", 2) };
        rest = comment.find(end).map_or("", |end| &comment[end + skip..]);
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_is_read_with_its_parameters() {
        let text = "// __global__ in a comment\nextern \"C\" __global__ void __launch_bounds__(128) add(float* out,\n\
                    const bf16 *__restrict__ x, /* rows */ u64 n, int k) { }";
        let found = signatures(text).unwrap();
        let parameter =
            |name: &str, scalar, pointer| Parameter { name: name.into(), scalar, pointer, in_f16: None };
        let pointer = |name: &str, scalar| parameter(name, scalar, true);
        let value = |name: &str, scalar| parameter(name, scalar, false);
        let parameters =
            vec![pointer("out", "F32"), pointer("x", "Bf16"), value("n", "U64"), value("k", "I32")];
        assert_eq!(found, [Signature { name: "add".into(), parameters }]);
    }

    #[test]
    fn a_kernel_over_the_16_bit_type_is_one_for_each() {
        let text = "extern \"C\" __global__ void a(scalar_t* x, remainder_t* r, bf16* y) {}\nextern \"C\" __global__ void b(int k) {}";
        let found = signatures(text).unwrap();
        let types = |signature: &Signature| signature.parameters.iter().map(|p| p.scalar).collect::<Vec<_>>();
        assert_eq!(types(&found[0]), ["Bf16", "I16", "Bf16"]);
        let other = found[0].in_f16().unwrap();
        assert_eq!((other.name.as_str(), types(&other)), ("a_f16", vec!["F16", "F32", "Bf16"]));
        assert!(other.in_f16().is_none() && found[1].in_f16().is_none());
        let text = in_f16(text, &found);
        assert!(text.starts_with("#define SCALAR_F16\n#define a a_f16\n#define b b_f16\n"), "{text}");
    }

    #[test]
    fn signatures_that_cannot_be_checked_are_refused() {
        assert!(signatures("__global__ void add(float* x) {}").unwrap_err().contains("extern \"C\""));
        let cause = signatures("extern \"C\" __global__ void add(double x) {}").unwrap_err();
        assert!(cause.contains("add: parameter 'double x'"), "{cause}");
        assert!(signatures("extern \"C\" __global__ void add(float** x) {}").is_err());
    }
}
