//! The inference engines of a run: on the CPU a decoder for each playing thread, on devices one engine for each
//! model and device.

use std::sync::Arc;
use std::{mem, thread};

use device::{ComputeDtype, DeviceKind, Devices};
use policy::directory::Policy;
use record::failure::{Failure, Result};

use crate::engine::device::{self as device_engine, DeviceBudget, MemoryLimit};
use crate::engine::service::Service;
use crate::engine::{CarriedOver, Engine, Options};
use crate::runtime::spawn_failure;

/// The engines, in the order of the models.
pub enum Inference {
    /// CPU decoders, one per playing thread.
    Cpu(Vec<Engine>),
    /// One thread per model and device.
    Device(Vec<Vec<Arc<Service>>>),
}

/// Engines carried over from one part of the input to the next.
#[derive(Default)]
pub struct KeptEngines {
    /// In the order of the models.
    on_cpu: Vec<CarriedOver>,
    /// In the order of the models, one per device.
    on_devices: Vec<Vec<Arc<Service>>>,
}

impl KeptEngines {
    /// Frees the devices. Closes engines that failed or would hold too much memory.
    pub fn release(&mut self) {
        let release = |service: &Arc<Service>| service.release().unwrap_or(false);
        // All of them, also after one that cannot be kept.
        let kept: Vec<bool> = self.on_devices.iter().flatten().map(release).collect();
        if kept.contains(&false) {
            self.on_devices.clear();
        }
    }
}

/// A model with its policies (the model itself or adapters of it), its stop tokens and its devices.
pub struct PlacedModel<'a> {
    pub policies: Vec<&'a Policy>,
    pub stop_ids: Vec<u32>,
    pub devices: &'a Devices,
}

/// Loads the models, on each device within the limit of memory. Reuses the entries of `kept` and replaces them with the new ones.
pub fn load(
    models: &[PlacedModel<'_>],
    limit: Option<MemoryLimit>,
    options: &Options,
    kept: Option<&mut KeptEngines>,
) -> Result<Inference> {
    if models.iter().any(|model| model.devices.first() != DeviceKind::Cpu) {
        let mut kept = kept.map(|kept| &mut kept.on_devices);
        let before = kept.as_deref_mut().map(mem::take).unwrap_or_default();
        let services = on_devices(models, options.dtype, limit, before)?;
        if let Some(kept) = kept {
            kept.clone_from(&services);
        }
        return Ok(Inference::Device(services));
    }
    let mut kept = kept.map(|kept| &mut kept.on_cpu);
    let cache_bytes = options.cache_bytes / models.len().max(1);
    let mut before = kept.as_deref_mut().map(mem::take).unwrap_or_default().into_iter();
    let mut engines = Vec::new();
    for PlacedModel { policies, stop_ids, .. } in models {
        let options = Options { cache_bytes, stop_ids: stop_ids.clone(), ..options.clone() };
        let engine = Engine::load_all(policies, &options, before.next())?;
        if let Some(kept) = &mut kept {
            kept.push(engine.kept());
        }
        engines.push(engine);
    }
    Ok(Inference::Cpu(engines))
}

/// The device engines: the previous ones with the new versions, if all can load them, else new ones. Devices
/// load at the same time, the models of one device one after another.
fn on_devices(
    models: &[PlacedModel<'_>],
    dtype: ComputeDtype,
    limit: Option<MemoryLimit>,
    before: Vec<Vec<Arc<Service>>>,
) -> Result<Vec<Vec<Arc<Service>>>> {
    let mut devices: Vec<DeviceKind> = Vec::new();
    for device in models.iter().flat_map(|model| model.devices.iter()) {
        if !devices.contains(device) {
            devices.push(*device);
        }
    }
    // The models of a device, with its place among the devices of each.
    let of_device = |device: DeviceKind| -> Vec<(usize, usize)> {
        let place = |model: &PlacedModel<'_>| model.devices.iter().position(|own| *own == device);
        models.iter().enumerate().filter_map(|(index, model)| Some((index, place(model)?))).collect()
    };
    let same = |(before, model): (&Vec<Arc<Service>>, &PlacedModel<'_>)| before.len() == model.devices.len();
    if before.len() == models.len() && before.iter().zip(models).all(same) {
        let goes_on = |device| {
            let loads = |(model, place): (usize, usize)| {
                let PlacedModel { policies, stop_ids, .. } = &models[model];
                // A reload that fails will fail again on opening, with a better message.
                before[model][place].reload(policies, stop_ids).unwrap_or(false)
            };
            Ok(of_device(device).into_iter().all(loads))
        };
        if at_once(&devices, &goes_on)?.into_iter().all(|goes_on| goes_on) {
            return Ok(before);
        }
    }
    // Free their memory before opening new ones.
    drop(before);
    let start = |device| {
        let own = of_device(device);
        let budget = Arc::new(DeviceBudget::new(limit, own.len()));
        let start = |&(model, _): &(usize, usize)| {
            let PlacedModel { policies, stop_ids, .. } = &models[model];
            device_engine::start(policies, device, dtype, &budget, stop_ids.clone())
        };
        own.iter().map(start).collect::<Result<Vec<Arc<Service>>>>()
    };
    let mut started: Vec<_> = at_once(&devices, &start)?.into_iter().map(Vec::into_iter).collect();
    let mut of_model = |model: &PlacedModel<'_>| {
        let next = |device| started[devices.iter().position(|own| own == device)?].next();
        model.devices.iter().filter_map(next).collect()
    };
    Ok(models.iter().map(&mut of_model).collect())
}

/// The results of `work` on each device, in parallel. Fails as the first device does.
fn at_once<T: Send>(
    devices: &[DeviceKind],
    work: &(impl Fn(DeviceKind) -> Result<T> + Sync),
) -> Result<Vec<T>> {
    if let [device] = devices {
        return Ok(vec![work(*device)?]);
    }
    thread::scope(|scope| {
        let start = |&device| thread::Builder::new().spawn_scoped(scope, move || work(device));
        let threads: Vec<_> = devices.iter().map(start).collect();
        let join = |thread: std::io::Result<thread::ScopedJoinHandle<'_, Result<T>>>| {
            let panicked = || Failure::work("a thread that loads weights panicked");
            thread.map_err(|error| spawn_failure(&error))?.join().unwrap_or_else(|_| Err(panicked()))
        };
        // All of them end before a failure is returned.
        let outcomes: Vec<Result<T>> = threads.into_iter().map(join).collect();
        outcomes.into_iter().collect()
    })
}
