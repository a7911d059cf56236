//! Finds the kernels in a source, and their parameters.
//!
//! A kernel is `extern "C" __global__ void [__launch_bounds__(...)] name(parameters)`. Parameters are values
//! of, or pointers to, a few scalar types. Launches are checked against them, so that a wrong argument is an
//! error rather than a corrupted result.

/// Parameter types in the source, and the corresponding variants of `device::Scalar`.
const SCALARS: [(&str, &str); 9] = [
    ("bf16", "Bf16"),
    ("float", "F32"),
    ("u8", "U8"),
    ("i16", "I16"),
    ("int", "I32"),
    ("i32", "I32"),
    ("u32", "U32"),
    ("i64", "I64"),
    ("u64", "U64"),
];

/// A kernel's parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    pub name: String,
    /// The variant of `device::Scalar`: its type, or the type it points to.
    pub scalar: &'static str,
    /// True if it is a pointer.
    pub pointer: bool,
}

/// A kernel's name and parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    /// The name, unique in the crate.
    pub name: String,
    /// The parameters in order.
    pub parameters: Vec<Parameter>,
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

fn unknown(kernel: &str, parameter: &str) -> String {
    let parameter = parameter.split_whitespace().collect::<Vec<_>>().join(" ");
    format!(
        "{kernel}: parameter '{parameter}' is no bf16, float, u8, i16, int, u32, i64 or u64, nor a pointer to one"
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
    let (_, scalar) = SCALARS.into_iter().find(|(word, _)| word == scalar)?;
    Some(Parameter { name: (*name).to_owned(), scalar, pointer })
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
        let pointer = |name: &str, scalar| Parameter { name: name.into(), scalar, pointer: true };
        let value = |name: &str, scalar| Parameter { name: name.into(), scalar, pointer: false };
        let parameters =
            vec![pointer("out", "F32"), pointer("x", "Bf16"), value("n", "U64"), value("k", "I32")];
        assert_eq!(found, [Signature { name: "add".into(), parameters }]);
    }

    #[test]
    fn what_cannot_be_checked_is_refused() {
        assert!(signatures("__global__ void add(float* x) {}").unwrap_err().contains("extern \"C\""));
        let cause = signatures("extern \"C\" __global__ void add(double x) {}").unwrap_err();
        assert!(cause.contains("add: parameter 'double x'"), "{cause}");
        assert!(signatures("extern \"C\" __global__ void add(float** x) {}").is_err());
    }
}
