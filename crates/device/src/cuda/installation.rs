//! Describes the CUDA installation, and checks that its versions are compatible.
//!
//! A driver runs code of compilers and libraries with the same or an earlier major version. Newer ones fail
//! late and with unclear errors, so they are refused up front.

use std::fmt;

use cudarc::driver::{DriverError, result};
use record::failure::{Failure, Result};

use super::library::{self, Library};
use super::{compile, words};

/// The CUDA installation in one line, for `--version`.
pub fn installation() -> String {
    let mut parts = Vec::new();
    parts.push(gpus().map_or_else(|failure| failure.message, |found| found.to_string()));
    match compile::version() {
        Ok((major, minor)) => parts.push(format!("NVRTC {major}.{minor}")),
        Err(failure) => parts.push(failure.message),
    }
    if let Err(failure) = library::open(Library::CublasLt) {
        parts.push(failure.message);
    } else {
        // SAFETY: the library is open.
        let version = unsafe { cudarc::cublaslt::sys::cublasLtGetVersion() };
        parts.push(format!("cuBLASLt {}.{}", version / 10000, version / 100 % 100));
    }
    parts.join(", ")
}

/// The driver and the names of its GPUs, in the order of their numbers.
pub struct Gpus {
    /// The newest CUDA version that the driver supports: 1000 × major + 10 × minor.
    pub driver: i32,
    /// Names, such as `NVIDIA H100 80GB HBM3`.
    pub names: Vec<String>,
}

impl fmt::Display for Gpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Gpus { driver, names } = self;
        let (major, minor) = (driver / 1000, driver % 1000 / 10);
        write!(f, "driver for CUDA {major}.{minor}, {} GPUs ({})", names.len(), names.join(", "))
    }
}

/// Lists the GPUs.
///
/// # Errors
/// 69: there is no driver, or it does not start.
pub fn gpus() -> Result<Gpus> {
    library::open(Library::Driver)?;
    let failed = |error: DriverError| {
        Failure::unavailable(format!("the NVIDIA driver does not start: {}", words(error)))
    };
    result::init().map_err(failed)?;
    let name = |number| result::device::get(number).and_then(result::device::get_name).unwrap_or_default();
    Ok(Gpus {
        driver: driver_version().map_err(failed)?,
        names: (0..result::device::get_count().map_err(failed)?).map(name).collect(),
    })
}

/// The UUIDs of the GPUs that this process sees, 16 bytes each, in their order.
///
/// # Errors
/// 69 without a driver, or if it does not start.
pub fn identities() -> Result<Vec<[u8; 16]>> {
    library::open(Library::Driver)?;
    let failed = |error: DriverError| {
        Failure::unavailable(format!("the NVIDIA driver does not list its GPUs: {}", words(error)))
    };
    result::init().map_err(failed)?;
    let identity = |number| {
        let identity = result::device::get_uuid(result::device::get(number)?)?;
        Ok(identity.bytes.map(|byte| byte as u8))
    };
    (0..result::device::get_count().map_err(failed)?).map(|number| identity(number).map_err(failed)).collect()
}

/// Checks that the GPUs with these numbers are there.
///
/// # Errors
/// 69 without a driver, or names the first GPU that is missing and those that are there.
pub fn check_cards(numbers: &[u32]) -> Result<()> {
    library::open(Library::Driver)?;
    let Some(&wanted) = numbers.first() else { return Ok(()) };
    let refused = |what: &str, error: DriverError| {
        Failure::unavailable(format!("cuda:{wanted}: {what}: {}", words(error)))
            .hint("nvidia-smi shows the GPUs and who uses them; --device cpu needs none")
    };
    result::init().map_err(|error| refused("the driver does not start", error))?;
    let count = result::device::get_count().map_err(|error| refused("the driver lists no GPUs", error))?;
    let Some(missing) = numbers.iter().find(|&&number| i64::from(number) >= i64::from(count)) else {
        return Ok(());
    };
    let names = gpus()?.names;
    let there: Vec<String> =
        names.iter().enumerate().map(|(number, name)| format!("cuda:{number} ({name})")).collect();
    let hint = match &there[..] {
        [] => "CUDA_VISIBLE_DEVICES may hide GPUs; nvidia-smi shows all".to_owned(),
        there => format!("GPUs are counted from 0; there are {}", there.join(", ")),
    };
    Err(Failure::unavailable(format!("cuda:{missing}: this machine has {count} NVIDIA GPUs")).hint(hint))
}

/// The newest CUDA version that the open driver supports: 1000 × major + 10 × minor.
pub(super) fn driver_version() -> std::result::Result<i32, DriverError> {
    let mut version = 0;
    // SAFETY: the driver is open; one out-parameter.
    unsafe { cudarc::driver::sys::cuDriverGetVersion(&mut version) }.result()?;
    Ok(version)
}

/// Checks that the open driver supports the versions of NVRTC and cuBLASLt.
///
/// # Errors
/// 69: one of them is missing, or newer than the driver.
pub(super) fn check_versions(number: u32) -> Result<()> {
    let driver = driver_version()
        .map_err(|error| Failure::unavailable(format!("cuda:{number}: its driver: {}", words(error))))?;
    let (compiler, _) = compile::version()?;
    library::open(Library::CublasLt)?;
    // SAFETY: the library is open.
    let products = unsafe { cudarc::cublaslt::sys::cublasLtGetVersion() } / 10000;
    for (name, major) in [("NVRTC", i64::from(compiler)), ("cuBLASLt", products as i64)] {
        check_version(number, driver, name, major)?;
    }
    Ok(())
}

fn check_version(number: u32, driver: i32, name: &str, major: i64) -> Result<()> {
    if i64::from(driver / 1000) >= major {
        return Ok(());
    }
    let served = format!("{}.{}", driver / 1000, driver % 1000 / 10);
    Err(Failure::unavailable(format!(
        "cuda:{number}: the driver supports CUDA {served}, but {name} is of CUDA {major}"
    ))
    .hint(format!(
        "install a driver for CUDA {major} (580 or later for CUDA 13), or set CUDA_PATH to a CUDA that the driver supports"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_newer_than_the_driver_are_rejected() {
        for (driver, major) in [(13000, 13), (13010, 12), (14000, 13)] {
            assert_eq!(check_version(0, driver, "NVRTC", major), Ok(()), "{driver}");
        }
        let failure = check_version(1, 12040, "NVRTC", 13).unwrap_err();
        assert_eq!(failure.code, record::failure::UNAVAILABLE);
        assert_eq!(failure.message, "cuda:1: the driver supports CUDA 12.4, but NVRTC is of CUDA 13");
    }
}
