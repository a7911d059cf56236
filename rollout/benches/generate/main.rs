//! Tokens per second of the engine alone: fixed lengths, no environment, no pipe.
//!
//! ```text
//! cargo bench -p rollout --bench generate -- --preset bench --threads 1,2
//! ```
//!
//! Counts completion tokens, not prompt tokens. CPU-seconds cover the whole process. Each thread works on
//! separate groups, so CPU-seconds are comparable on a busy machine, unlike wall time.
//!
//! With `--device` it measures the device engine, see [`on_device`].

mod on_device;

use clap::{Parser, ValueEnum};
use device::DeviceKind;
use policy::directory::Policy;
use policy::initial::{self, Preset};
use record::failure::Result;
use record::philox::{Draws, Part, Stream};
use rollout::engine::{Engine, Options, Precision, Request, SamplingParams};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Generates groups of fixed length and says how fast
#[derive(Parser)]
struct Arguments {
    /// A new random policy of this size
    #[arg(long, value_enum, default_value = "bench")]
    preset: Size,
    /// This policy instead
    #[arg(long)]
    policy: Option<PathBuf>,
    /// What the operands of matrix products are rounded to
    #[arg(long, default_value_t = Precision::Float32)]
    dtype: Precision,
    /// Tokens of a prompt
    #[arg(long, default_value_t = 128)]
    prompt: usize,
    /// Tokens of a completion
    #[arg(long, default_value_t = 64)]
    completion: usize,
    /// Branches of a group; with --device several numbers, one after another
    #[arg(long, value_delimiter = ',', default_value = "4")]
    branches: Vec<usize>,
    /// Groups a thread
    #[arg(long, default_value_t = 32)]
    groups: usize,
    /// Branches that a decoder generates at the same time
    #[arg(long, default_value_t = 512)]
    rows: usize,
    /// Numbers of threads to measure, one after another
    #[arg(long, value_delimiter = ',', default_value = "1,2")]
    threads: Vec<usize>,
    /// Measurements of each; the best and the median are printed
    #[arg(long, default_value_t = 7)]
    repeats: usize,
    /// Measure the device engine on: sim, cuda or cuda:N
    #[arg(long)]
    device: Option<String>,
    /// With --device: sequences that are decoded together
    #[arg(long, value_delimiter = ',', default_value = "1,16,64,256")]
    batch: Vec<usize>,
    /// With --device: tokens of a sequence halfway through the measurement
    #[arg(long, value_delimiter = ',', default_value = "512,1536")]
    context: Vec<usize>,
    /// With --device: steps that are measured
    #[arg(long, default_value_t = 64)]
    steps: usize,
    /// What `cargo bench` itself passes
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Size {
    Tiny,
    Bench,
}

fn main() -> ExitCode {
    // SAFETY: the first statement of main, so no other thread exists.
    unsafe { rollout::runtime::set_variables() };
    record::stage::run("generate", || {
        let arguments: Arguments = record::stage::parse();
        measure(&arguments)
    })
}

fn measure(arguments: &Arguments) -> Result<()> {
    let folder = std::env::temp_dir().join(format!("troupe-generate-{}", std::process::id()));
    let policy = match (&arguments.policy, arguments.preset) {
        (Some(path), _) => Policy::open(path)?,
        (None, Size::Tiny) => initial::from_preset(&folder, Preset::Tiny, 1)?,
        (None, Size::Bench) => initial::from_preset(&folder, Preset::Bench, 1)?,
    };
    let measured = match &arguments.device {
        Some(name) => on_device::measure(arguments, &policy, DeviceKind::parse("--device", name)?),
        None => on_cpu(arguments, &policy),
    };
    if arguments.policy.is_none() {
        std::fs::remove_dir_all(&folder)?;
    }
    measured
}

fn on_cpu(arguments: &Arguments, policy: &Policy) -> Result<()> {
    for &threads in &arguments.threads {
        let started = Instant::now();
        let options =
            Options { threads, max_rows: arguments.rows, precision: arguments.dtype, ..Options::default() };
        let engine = Engine::load(policy, &options)?;
        let loaded = started.elapsed();
        let mut decoders = (0..threads).map(|_| engine.decoder()).collect::<Vec<_>>();
        let tokens = (threads * arguments.groups * arguments.branches[0] * arguments.completion) as f64;
        let mut times = Vec::new();
        // The first one is not counted: it takes memory from the system.
        for repeat in 0..=arguments.repeats {
            let (wall, processor) = (Instant::now(), processor_time());
            std::thread::scope(|scope| {
                let start =
                    |(thread, decoder)| scope.spawn(move || generate(arguments, decoder, thread, repeat));
                let threads: Vec<_> = decoders.iter_mut().enumerate().map(start).collect();
                threads.into_iter().try_for_each(|thread| thread.join().expect("a thread panicked"))
            })?;
            times.push((wall.elapsed(), processor_time() - processor));
        }
        let times = &mut times[1..];
        let (wall, processor) = (spread(times, |time| time.0), spread(times, |time| time.1));
        eprintln!(
            "{}, {threads} thread(s), {} x {} branches a thread, {} + {} tokens: load {:.1} ms; CPU {:.1} ms (median {:.1}); \
             {:.0} tokens a CPU-second (median {:.0}); wall {:.1} ms, {:.0} tokens a second (median {:.0}); peak {} MB",
            engine.instruction_set(),
            arguments.groups,
            arguments.branches[0],
            arguments.prompt,
            arguments.completion,
            milliseconds(loaded),
            milliseconds(processor.0),
            milliseconds(processor.1),
            tokens / processor.0.as_secs_f64(),
            tokens / processor.1.as_secs_f64(),
            milliseconds(wall.0),
            tokens / wall.0.as_secs_f64(),
            tokens / wall.1.as_secs_f64(),
            peak_megabytes(),
        );
    }
    Ok(())
}

/// One thread's groups, from an idle decoder to an idle decoder.
fn generate(
    arguments: &Arguments,
    decoder: &mut rollout::engine::Decoder,
    thread: usize,
    repeat: usize,
) -> Result<()> {
    for group in 0..arguments.groups {
        let place = [thread, repeat, group].map(|number| number as u64);
        decoder
            .submit(None, request(place, arguments.prompt, arguments.branches[0], arguments.completion))?;
    }
    while !decoder.is_idle() {
        decoder.advance()?;
    }
    Ok(())
}

/// A group whose prompt and random numbers depend on its place alone, whose last part is the request id.
fn request(place: [u64; 3], prompt: usize, branches: usize, tokens: usize) -> Request {
    let name = |what| [[Part::Text(what)].as_slice(), &place.map(Part::Number)].concat();
    let mut draws = Draws::new(Stream::named(1, &name("prompt")));
    let branch = |branch| Stream::named(branch as u64, &name("branch"));
    Request {
        id: place[2],
        prompt: (0..prompt).map(|_| 4 + draws.below(500)).collect(),
        streams: (0..branches).map(branch).collect(),
        max_tokens: tokens,
        sampling: SamplingParams::PLAIN,
        stop: None,
        watch: None,
    }
}

/// The least and the middle one.
fn spread(
    times: &mut [(Duration, Duration)],
    which: impl Fn(&(Duration, Duration)) -> Duration,
) -> (Duration, Duration) {
    times.sort_by_key(&which);
    (which(&times[0]), which(&times[times.len() / 2]))
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// CPU time of the process so far.
fn processor_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is written to and nothing else.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The largest resident size so far.
fn peak_megabytes() -> i64 {
    // SAFETY: a zeroed `rusage` is valid, and it is written to and nothing else.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage.ru_maxrss / 1024
    }
}
