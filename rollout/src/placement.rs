//! Which devices run which policy: `--device` for all, `--policy AGENT=DIR@DEVICE` for one.
//!
//! A policy with several devices has an engine on each, and each playing thread uses one of them. A task is
//! played by one thread, so its groups and the turns that share a cached prompt stay on one device.

use device::{DeviceKind, Devices};
use policy::ownership::Ownership;
use record::failure::{Failure, Result};

use crate::engine::device::MemoryLimit;

const FLAG: &str = "--policy";

/// The policies of a command line, and their devices.
#[derive(Clone, Debug)]
pub struct DevicePlacement {
    /// The policies.
    pub team: Ownership,
    /// By policy, all of one kind. A server's are not used; absent agents, which come last, have none.
    pub devices: Vec<Devices>,
    /// The most memory of a device for all policies on it.
    pub memory: Option<MemoryLimit>,
}

impl DevicePlacement {
    /// Parses the values of `--policy`, which may end in `@DEVICE`, over the values of `--device` and `--device-memory`.
    ///
    /// # Errors
    /// Usage (exit 2): see [`Ownership::parse`], [`Devices::parse`] and [`MemoryLimit::parse`]; one policy at two places, or policies on devices of
    /// different kinds.
    pub fn parse(policies: &[String], device: &str, memory: Option<&str>) -> Result<DevicePlacement> {
        let all = Devices::parse("--device", device)?;
        let split: Vec<(&str, Option<&str>)> = policies.iter().map(|value| split(value)).collect();
        let plain: Vec<String> = split.iter().map(|(policy, _)| (*policy).to_owned()).collect();
        let team = Ownership::parse(FLAG, &plain)?;
        let mut own: Vec<Option<Devices>> = vec![None; team.owners().len()];
        for (value, device) in split {
            let Some(device) = device else { continue };
            let devices = Devices::parse(FLAG, device)?;
            // As `Ownership` reads it: no agent has an empty name, so that one finds the policy of all others.
            let agent = value.split_once('=').map(|(agent, _)| agent).filter(|agent| !agent.contains('/'));
            let Some(owner) = team.of(agent.unwrap_or_default()) else { continue };
            let place = &mut own[owner];
            if let Some(other) = place.as_ref().filter(|other| **other != devices) {
                return Err(Failure::usage(format!("{FLAG} {value}@{device}: the same policy is also at {other}"))
                    .hint("a policy has one place; agents with a device each need a policy each: policy init NEW --from DIR"));
            }
            *place = Some(devices);
        }
        let devices: Vec<Devices> = own.into_iter().map(|own| own.unwrap_or_else(|| all.clone())).collect();
        let placement =
            DevicePlacement { team, devices, memory: memory.map(MemoryLimit::parse).transpose()? };
        placement.check_kinds()?;
        if let (Some(limit), true) = (&placement.memory, placement.cards().is_empty()) {
            return Err(Failure::usage(format!(
                "{limit} has no effect with --device {}",
                placement.device()
            ))
            .hint("leave it out: only NVIDIA GPUs have such a limit"));
        }
        Ok(placement)
    }

    /// The devices of the policies with weights.
    fn used(&self) -> impl Iterator<Item = &Devices> {
        let owners = self.team.owners().iter();
        owners.zip(&self.devices).filter(|(owner, _)| !owner.is_server()).map(|(_, devices)| devices)
    }

    fn check_kinds(&self) -> Result<()> {
        let first = self.device();
        let is_other = |kind: &DeviceKind| std::mem::discriminant(kind) != std::mem::discriminant(&first);
        match self.used().map(Devices::first).find(is_other) {
            None => Ok(()),
            Some(other) => Err(Failure::usage(format!("{FLAG}: policies are on {first} and on {other}"))
                .hint("all policies of a run compute on one kind of device; --device is the place of those without @DEVICE")),
        }
    }

    /// A device of the kind that all policies use.
    pub fn device(&self) -> DeviceKind {
        self.used().chain(&self.devices).next().map(Devices::first).unwrap_or_default()
    }

    /// The most devices that a policy has.
    pub fn most(&self) -> usize {
        self.used().map(|devices| devices.len()).max().unwrap_or(1)
    }

    /// The numbers of the NVIDIA GPUs that policies use.
    pub fn cards(&self) -> Vec<u32> {
        self.used().flat_map(Devices::cards).collect()
    }
}

/// A value without its device, and the device. Folders may contain an `@`, and servers' URLs are refused with one.
fn split(value: &str) -> (&str, Option<&str>) {
    let is_device = |text: &str| ["cpu", "cuda", "sim"].contains(&text.split(':').next().unwrap_or_default());
    match value.rsplit_once('@') {
        Some((policy, device)) if is_device(device) && !value.contains("://") => (policy, Some(device)),
        _ => (value, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(policies: &[&str], device: &str) -> Result<DevicePlacement> {
        let policies: Vec<String> = policies.iter().map(|&policy| policy.to_owned()).collect();
        DevicePlacement::parse(&policies, device, None)
    }

    #[test]
    fn a_policy_is_where_it_says_or_where_all_are() {
        let places = |policies: &[&str], device: &str| -> Vec<String> {
            parse(policies, device).expect("places").devices.iter().map(Devices::to_string).collect()
        };
        assert_eq!(places(&["run/all"], "cuda:0-1"), ["cuda:0,1"]);
        assert_eq!(places(&["tool=run/a@cuda:1", "run/b"], "cuda"), ["cuda:1", "cuda:0"]);
        assert_eq!(places(&["tool=run/a@cuda:1", "run/b@cuda:2,3"], "cpu"), ["cuda:1", "cuda:2,3"]);
        assert_eq!(places(&["tool=run/a@cuda:1", "run/a"], "cuda"), ["cuda:1"]);
        let folder = parse(&["run/a@home"], "cpu").expect("a folder");
        assert_eq!(folder.team.owners()[0].directory.to_str(), Some("run/a@home"));
        let both = parse(&["run/a=b/c@sim:2"], "cpu").expect("a place");
        assert_eq!((both.device(), both.most(), both.cards()), (DeviceKind::Sim(2), 1, vec![]));
        let served = parse(&["tool=run/a@cuda:0-3", "planner=http://host/v1"], "cpu").expect("places");
        assert_eq!((served.device(), served.most()), (DeviceKind::Cuda(0), 4));
        assert_eq!(served.cards(), [0, 1, 2, 3]);
    }

    #[test]
    fn impossible_places_are_refused_with_their_cause() {
        for (policies, device, cause) in [
            (&["a=run/x@cuda:0", "b=run/x@cuda:1"][..], "cuda", "the same policy is also at cuda:0"),
            (&["a=run/x@cuda:0", "run/y"], "cpu", "policies are on cuda:0 and on cpu"),
            (&["a=run/x@cuda:0", "run/y"], "sim", "policies are on cuda:0 and on sim"),
            (&["run/x@cuda:9-1"], "cpu", "the range runs backwards"),
            (&["@cuda:1"], "cpu", "not [AGENT=]DIR"),
        ] {
            let failure = parse(policies, device).expect_err(cause);
            assert_eq!(failure.code, record::failure::USAGE);
            assert!(failure.message.contains(cause), "{failure}");
        }
        let limited = |device| DevicePlacement::parse(&["run/x".to_owned()], device, Some("50%"));
        assert_eq!(limited("cuda:0-1").expect("a limit").memory, Some(MemoryLimit::Percent(50.0)));
        let failure = limited("sim").expect_err("no effect");
        assert_eq!(failure.message, "--device-memory 50% has no effect with --device sim");
    }
}
