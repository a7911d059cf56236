//! Generates the C++ file with the simulator's entries, and the Rust file that declares the kernels.

use std::fmt::Write;
use std::path::PathBuf;

use crate::signature::Signature;

pub(crate) struct Module {
    pub name: String,
    /// The `.cu` file's name, without the ending.
    pub file: String,
    pub source: PathBuf,
    pub signatures: Vec<Signature>,
}

/// The C++ file for the host: the expanded source, then one entry `simulated_PACKAGE_KERNEL` per kernel.
pub fn host_wrapper(package: &str, text: &str, signatures: &[Signature]) -> String {
    let mut out = text.to_owned();
    for signature in signatures {
        let _ = writeln!(out, "SIMULATOR_ENTRY(simulated_{package}_{0}, {0})", signature.name);
    }
    out
}

/// The architecture in the name of a `.cu` file, if it is for only one: `sm_90a` for `attention_128_sm90a`.
pub fn architecture(name: &str) -> Option<&'static str> {
    name.ends_with("_sm90a").then_some("sm_90a")
}

/// The generated `kernels.rs`.
pub(crate) fn rust(package: &str, modules: &[Module]) -> String {
    let mut out = String::from("// Written by the build script from the .cu files of this crate.\n");
    out.push_str("unsafe extern \"C\" {\n");
    for signature in modules.iter().flat_map(|module| &module.signatures) {
        let _ = writeln!(
            out,
            "    fn simulated_{package}_{}(launch: *mut ::core::ffi::c_void, arguments: *const *const ::core::ffi::c_void);",
            signature.name
        );
    }
    out.push_str("}\n\n");
    for module in modules {
        let constant = module.name.to_uppercase();
        let _ = writeln!(
            out,
            "/// The source `{0}.cu` with its includes.\npub static SOURCE_{constant}: ::device::Source =\n    \
             ::device::Source {{ name: \"{package}/{1}.cu\", text: include_str!({2:?}), architecture: {3:?} }};\n",
            module.file,
            module.name,
            module.source.display().to_string(),
            architecture(&module.file)
        );
        for signature in &module.signatures {
            let name = &signature.name;
            let parameters: Vec<String> = signature
                .parameters
                .iter()
                .map(|p| {
                    format!(
                        "::device::Parameter {{ name: {:?}, scalar: ::device::Scalar::{}, pointer: {} }}",
                        p.name, p.scalar, p.pointer
                    )
                })
                .collect();
            let in_f16 = signature
                .in_f16()
                .map_or(String::new(), |other| format!(".with_f16(&{})", other.name.to_uppercase()));
            let _ = writeln!(
                out,
                "/// Kernel `{name}` of `{file}.cu`.\npub static {upper}: ::device::Kernel =\n    \
                 // SAFETY: the entry was generated from the parameters of this kernel.\n    \
                 unsafe {{ ::device::Kernel::new({name:?}, &SOURCE_{constant}, &[{list}], simulated_{package}_{name}){in_f16} }};\n",
                file = module.file,
                upper = name.to_uppercase(),
                list = parameters.join(", ")
            );
        }
    }
    out
}
