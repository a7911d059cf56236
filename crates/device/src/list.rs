//! A list of devices, as `--device cuda:0-7` names it.

use std::fmt;
use std::ops::Deref;

use record::failure::{Failure, Result};

use crate::selection::DeviceKind;

/// The most devices of a list.
const MOST: usize = 256;

/// One or more distinct devices of one kind, in the order in which they were named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Devices(Vec<DeviceKind>);

impl Devices {
    /// The `--help` text of a flag that takes a list.
    pub const HELP: &str = "cpu; cuda, cuda:N (the N-th NVIDIA GPU), cuda:0-7 or cuda:0,2 (several); or sim: the CUDA \
                            kernels run on the CPU, far too slow for work, for tests and debugging";

    /// Parses a flag's value: what [`DeviceKind`] takes, and numbers and ranges after one colon.
    ///
    /// # Errors
    /// Usage (exit 2) for text that names no device, for a range that runs backwards, and for a device named twice.
    pub fn parse(flag: &str, text: &str) -> Result<Devices> {
        let refuse = |cause: &str| Failure::usage(format!("{flag} {text}: {cause}"));
        let unknown = || {
            refuse("not a device")
                .hint("devices are cpu, cuda, cuda:N, several as cuda:0-7 or cuda:0,2, and sim")
        };
        let Some((kind, numbers)) = text.split_once(':') else {
            return text.parse().map(|device| Devices(vec![device])).map_err(|()| unknown());
        };
        let mut devices = Vec::new();
        for part in numbers.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let number = |digits: &str| digits.parse::<u32>().map_err(|_| unknown());
            let (first, last) = (number(first)?, number(last)?);
            if first > last {
                return Err(refuse("the range runs backwards").hint(format!("write {kind}:{last}-{first}")));
            }
            if (last - first) as usize >= MOST - devices.len() {
                return Err(refuse("more devices than any machine has").hint("cuda:0-7 are eight"));
            }
            for number in first..=last {
                let device = format!("{kind}:{number}").parse().map_err(|()| unknown())?;
                if devices.contains(&device) {
                    return Err(refuse(&format!("{device} is named twice")).hint("name each once: cuda:0-3"));
                }
                devices.push(device);
            }
        }
        Ok(Devices(devices))
    }

    /// The numbers of the NVIDIA GPUs among them.
    pub fn cards(&self) -> Vec<u32> {
        let number = |device: &DeviceKind| match device {
            DeviceKind::Cuda(number) => Some(*number),
            _ => None,
        };
        self.0.iter().filter_map(number).collect()
    }

    pub fn first(&self) -> DeviceKind {
        self.0.first().copied().unwrap_or_default()
    }
}

impl Deref for Devices {
    type Target = [DeviceKind];

    fn deref(&self) -> &[DeviceKind] {
        &self.0
    }
}

impl fmt::Display for Devices {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [first, others @ ..] = &self.0[..] else { return Ok(()) };
        let name = first.to_string();
        match name.contains(':') || others.is_empty() {
            true => formatter.write_str(&name)?,
            false => write!(formatter, "{name}:0")?,
        }
        for other in others {
            let name = other.to_string();
            write!(formatter, ",{}", name.split_once(':').map_or("0", |(_, number)| number))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_ranges_in_their_order() {
        let cuda =
            |numbers: &[u32]| Devices(numbers.iter().map(|&number| DeviceKind::Cuda(number)).collect());
        for (text, wanted, written) in [
            ("cpu", Devices(vec![DeviceKind::Cpu]), "cpu"),
            ("cuda", cuda(&[0]), "cuda:0"),
            ("cuda:3", cuda(&[3]), "cuda:3"),
            ("cuda:0-3", cuda(&[0, 1, 2, 3]), "cuda:0,1,2,3"),
            ("cuda:4,0-1", cuda(&[4, 0, 1]), "cuda:4,0,1"),
            ("sim:0-1", Devices(vec![DeviceKind::Sim(0), DeviceKind::Sim(1)]), "sim:0,1"),
        ] {
            let found = Devices::parse("--device", text).expect(text);
            assert_eq!((&found, &*found.to_string()), (&wanted, written), "{text}");
        }
    }

    #[test]
    fn wrong_device_lists_are_refused_with_their_cause() {
        for (text, cause) in [
            ("", "not a device"),
            ("gpu", "not a device"),
            ("cpu:1", "not a device"),
            ("cuda:", "not a device"),
            ("cuda:0,", "not a device"),
            ("cuda:0-", "not a device"),
            ("cuda:0,cuda:1", "not a device"),
            ("cuda:-1", "not a device"),
            ("cuda:3-1", "the range runs backwards"),
            ("cuda:0-2,1", "cuda:1 is named twice"),
            ("cuda:0-4294967295", "more devices than any machine has"),
        ] {
            let failure = Devices::parse("--device", text).expect_err(text);
            assert_eq!(failure.code, record::failure::USAGE, "{text}");
            assert_eq!(failure.message, format!("--device {text}: {cause}"));
            assert!(failure.hint.is_some(), "{text}");
        }
    }
}
