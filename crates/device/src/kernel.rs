//! Kernels, launch shapes and arguments, and the check that a launch matches the kernel's declaration.

use std::ffi::c_void;

use record::failure::{Failure, Result};

use crate::arena::{AnySlice, Arena, Buffer, Slice};
use crate::element::{Element, Scalar};

/// A self-contained CUDA C++ source.
#[derive(Debug)]
pub struct Source {
    /// `package/file.cu`, for messages.
    pub name: &'static str,
    /// The text with its includes expanded.
    pub text: &'static str,
    /// The only architecture that it supports, such as `sm_90a`; `None` for all.
    pub architecture: Option<&'static str>,
}

impl Source {
    /// Shared memory in bytes that a block may have on all GPUs that the source supports.
    pub fn shared_limit(&self) -> u32 {
        if self.architecture.is_some() { HOPPER_SHARED_LIMIT } else { SHARED_LIMIT }
    }
}

/// A kernel's parameter.
#[derive(Debug, Clone, Copy)]
pub struct Parameter {
    pub name: &'static str,
    /// Its type, or the type it points to.
    pub scalar: Scalar,
    /// True if it is a pointer to device memory.
    pub pointer: bool,
}

/// The kernel's entry in the simulator. Takes a `simulator::Call` and the addresses of the arguments.
pub type SimulatorEntry = unsafe extern "C" fn(call: *mut c_void, arguments: *const *const c_void);

/// A kernel, declared by a build script (see the crate's header).
#[derive(Debug)]
pub struct Kernel {
    name: &'static str,
    source: &'static Source,
    parameters: &'static [Parameter],
    pub(crate) entry: SimulatorEntry,
    /// Its twin over f16, if this one is over bf16.
    in_f16: Option<&'static Kernel>,
}

impl Kernel {
    /// A kernel of `source`.
    ///
    /// # Safety
    /// `entry` must be this kernel's entry in the simulator, and `parameters` its parameters in order. The
    /// kernel must not access memory outside its buffers if its arguments keep its documented contract.
    pub const unsafe fn new(
        name: &'static str,
        source: &'static Source,
        parameters: &'static [Parameter],
        entry: SimulatorEntry,
    ) -> Self {
        Kernel { name, source, parameters, entry, in_f16: None }
    }

    /// The kernel, with the same one compiled for f16.
    pub const fn with_f16(self, other: &'static Kernel) -> Self {
        Kernel { in_f16: Some(other), ..self }
    }

    /// The kernel for these arguments, of those compiled for two types.
    pub(crate) fn of(&'static self, arguments: &[Argument<'_>]) -> &'static Kernel {
        let kinds =
            |kernel: &Kernel| kernel.parameters.iter().map(|parameter| (parameter.scalar, parameter.pointer));
        let fits = |other: &&Kernel| arguments.iter().map(Argument::kind).eq(kinds(other));
        self.in_f16.filter(fits).unwrap_or(self)
    }

    pub fn name(&self) -> &'static str {
        self.name
    }

    pub fn source(&self) -> &'static Source {
        self.source
    }

    pub fn parameters(&self) -> &'static [Parameter] {
        self.parameters
    }

    /// Checks that arguments and shape fit this kernel, and that its buffers lie in this arena.
    pub(crate) fn check(&self, arena: &Arena, shape: Shape, arguments: &[Argument<'_>]) -> Result<()> {
        let wrong = |cause: String| Err(Failure::work(format!("kernel {}: {cause}", self.name)));
        if arguments.len() != self.parameters.len() {
            return wrong(format!("{} arguments for {} parameters", arguments.len(), self.parameters.len()));
        }
        for (argument, parameter) in arguments.iter().zip(self.parameters) {
            let (scalar, pointer) = argument.kind();
            if (scalar, pointer) != (parameter.scalar, parameter.pointer) {
                let kind =
                    |scalar: Scalar, pointer: bool| format!("{scalar}{}", if pointer { "*" } else { "" });
                let (wanted, given) = (kind(parameter.scalar, parameter.pointer), kind(scalar, pointer));
                return wrong(format!("{} is {wanted}, not {given}", parameter.name));
            }
            if let Value::Pointer(raw) = argument.0 {
                raw.check(arena)?;
            }
        }
        let threads: u64 = shape.block.iter().map(|&n| u64::from(n)).product();
        let grid = !shape.grid.contains(&0) && shape.grid[1].max(shape.grid[2]) <= 65535;
        if !grid || !(1..=1024).contains(&threads) {
            return wrong(format!("grid {:?} of blocks {:?} is impossible", shape.grid, shape.block));
        }
        let limit = self.source.shared_limit();
        if shape.shared > limit {
            return wrong(format!("{} bytes of shared memory are more than {limit}", shape.shared));
        }
        Ok(())
    }
}

/// Shared memory in bytes that a block has on every GPU since compute capability 8.0: 99 KiB on the
/// consumer GPUs 8.6, 8.9 and 12.0, more on 8.0, 9.0 and 10.0. Limits every launch on any device, except
/// kernels for a single architecture.
pub const SHARED_LIMIT: u32 = 99 * 1024;

/// The limit on compute capability 9.0, which has kernels of its architecture.
const HOPPER_SHARED_LIMIT: u32 = 227 * 1024;

/// The grid of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Blocks in x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y, z; at most 1024 in total.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory of a block.
    pub shared: u32,
}

impl Shape {
    /// `blocks` blocks of `threads` threads.
    pub fn rows(blocks: u32, threads: u32) -> Self {
        Shape { grid: [blocks, 1, 1], block: [threads, 1, 1], shared: 0 }
    }

    /// One thread per value, in blocks of 256 threads; at least one block.
    pub fn values(count: u64) -> Self {
        Self::rows(count.div_ceil(256).clamp(1, i32::MAX as u64) as u32, 256)
    }

    /// Sets `bytes` of dynamic shared memory per block.
    #[must_use]
    pub fn shared(self, bytes: u32) -> Self {
        Shape { shared: bytes, ..self }
    }
}

/// One argument of a launch: a scalar or a buffer.
#[derive(Clone, Copy, Debug)]
pub struct Argument<'a>(pub(crate) Value<'a>);

#[derive(Clone, Copy, Debug)]
pub(crate) enum Value<'a> {
    Pointer(AnySlice<'a>),
    Scalar(Scalar, u64),
}

impl Argument<'_> {
    fn kind(&self) -> (Scalar, bool) {
        match self.0 {
            Value::Pointer(raw) => (raw.scalar, true),
            Value::Scalar(scalar, _) => (scalar, false),
        }
    }

    /// The argument's bytes, little-endian, in the low end of a 64-bit word.
    pub(crate) fn bits(&self) -> u64 {
        match self.0 {
            Value::Pointer(raw) => raw.address,
            Value::Scalar(_, bits) => bits,
        }
    }
}

impl<'a> From<AnySlice<'a>> for Argument<'a> {
    fn from(slice: AnySlice<'a>) -> Self {
        Argument(Value::Pointer(slice))
    }
}

impl<'a, T: Element> From<Slice<'a, T>> for Argument<'a> {
    fn from(slice: Slice<'a, T>) -> Self {
        Argument(Value::Pointer(slice.raw()))
    }
}

impl<'a, T: Element> From<&'a Buffer<T>> for Argument<'a> {
    fn from(buffer: &'a Buffer<T>) -> Self {
        buffer.all().into()
    }
}

macro_rules! scalar_arguments {
    ($($type:ty => $scalar:ident, $bits:expr;)*) => {$(
        impl From<$type> for Argument<'_> {
            fn from(value: $type) -> Self {
                let bits: fn($type) -> u64 = $bits;
                Argument(Value::Scalar(Scalar::$scalar, bits(value)))
            }
        }
    )*};
}

scalar_arguments!(
    f32 => F32, |v| u64::from(v.to_bits());
    i32 => I32, |v| u64::from(v as u32);
    u32 => U32, u64::from;
    i64 => I64, |v| v as u64;
    u64 => U64, |v| v;
);
