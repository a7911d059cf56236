//! MPI, through the functions of `mpi.c`, which `mpicc` compiles: so any MPI library will do, whatever its binary interface,
//! and no other crate is needed. An error of MPI's own ends all ranks (its default error handler).

use std::os::raw::{c_int, c_void};

use record::failure::{Failure, Result};
use record::stage;

use super::Communicator;
use super::wait::{Wait, word};

unsafe extern "C" {
    fn ranks_start(rank: *mut c_int, count: *mut c_int);
    fn ranks_split(which: c_int, rank: *mut c_int, count: *mut c_int);
    fn ranks_broadcast_begin(of: c_int, root: c_int, bytes: *mut c_void, length: usize);
    fn ranks_broadcast_is_done() -> c_int;
    fn ranks_arrive(of: c_int);
    fn ranks_is_there(other: c_int) -> c_int;
    fn ranks_have_arrived(of: c_int);
    fn ranks_all_gather(of: c_int, own: *const c_void, length: usize, all: *mut c_void);
    fn ranks_gather_on_first(
        of: c_int,
        own: *const c_void,
        length: usize,
        all: *mut c_void,
        lengths: *const usize,
    );
    fn ranks_all_to_all(of: c_int, own: *const c_void, length: usize, received: *mut c_void);
    fn ranks_finish();
    fn ranks_abort(code: c_int);
}

/// The communicators of `mpi.c`: all ranks, and the ranks of one policy.
const OF_ALL: c_int = 0;
const OF_SOME: c_int = 1;

/// A process of an MPI program. All calls come from the thread that made it.
pub struct Mpi {
    of: c_int,
    rank: usize,
    count: usize,
    /// The number among all of the first.
    first: usize,
    /// MPI is told that one thread calls it, so this must stay on that one.
    _one_thread: std::marker::PhantomData<*mut ()>,
}

impl Mpi {
    /// Joins the others.
    pub fn start() -> Mpi {
        let (mut rank, mut count) = (0, 0);
        // SAFETY: it writes the two numbers. MPI is started once: by `update::stage::run`, which a process calls once.
        unsafe { ranks_start(&raw mut rank, &raw mut count) };
        Mpi::new(OF_ALL, rank, count, 0)
    }

    fn new(of: c_int, rank: c_int, count: c_int, first: usize) -> Mpi {
        let (rank, count) = (rank as usize, count as usize);
        Mpi { of, rank, count, first, _one_thread: std::marker::PhantomData }
    }

    /// Waits until all are here, and says for which it has to wait long; false where it `gives_up` before. What they exchange then
    /// takes only as long as the exchange.
    fn meet(&self, gives_up: impl Fn() -> bool) -> bool {
        let is_absent = |rank: &usize| {
            // SAFETY: looks at a request that `ranks_arrive` has begun, or at none.
            unsafe { ranks_is_there(*rank as c_int) == 0 }
        };
        let mut wait = Wait::new();
        // SAFETY: all of a communicator do the same, and the requests have no bytes.
        unsafe { ranks_arrive(self.of) };
        while (0..self.count).any(|rank| is_absent(&rank)) {
            if gives_up() {
                return false;
            }
            if let Some(waited) = wait.is_over() {
                let absent: Vec<usize> = (0..self.count).filter(is_absent).collect();
                if let Some(word) = word(self.rank, &absent, waited, |rank| self.number(rank)) {
                    stage::note("update", word);
                }
            }
            wait.pause();
        }
        // SAFETY: all have received what was sent.
        unsafe { ranks_have_arrived(self.of) };
        true
    }
}

impl Communicator for Mpi {
    fn rank(&self) -> usize {
        self.rank
    }

    fn count(&self) -> usize {
        self.count
    }

    fn split(&self, groups: usize) -> Box<dyn Communicator> {
        let each = self.count / groups;
        let (which, mut rank, mut count) = (self.rank / each, 0, 0);
        // SAFETY: it writes the two numbers. Called once: by `update::stage::run`.
        unsafe { ranks_split(which as c_int, &raw mut rank, &raw mut count) };
        Box::new(Mpi::new(OF_SOME, rank, count, which * each))
    }

    fn number(&self, rank: usize) -> usize {
        self.first + rank
    }

    fn broadcast(&self, root: usize, bytes: &mut [u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(()); // their address may be one that means something else to MPI
        }
        if !self.meet(stage::interrupted) {
            return Err(Failure::interrupted());
        }
        let wait = Wait::new();
        // SAFETY: the bytes outlive the request. It is over when this returns, unless by an interruption, after which the
        // process calls MPI only to end.
        unsafe {
            ranks_broadcast_begin(self.of, root as c_int, bytes.as_mut_ptr().cast(), bytes.len());
            while ranks_broadcast_is_done() == 0 {
                if stage::interrupted() {
                    return Err(Failure::interrupted());
                }
                wait.pause();
            }
        }
        Ok(())
    }

    fn all_gather(&self, own: &[u8], all: &mut [u8]) {
        assert_eq!(all.len(), own.len() * self.count);
        self.meet(|| false);
        // SAFETY: `all` has room for as many times the bytes of `own` as there are ranks.
        unsafe { ranks_all_gather(self.of, own.as_ptr().cast(), own.len(), all.as_mut_ptr().cast()) };
    }

    fn all_to_all(&self, own: &[u8], received: &mut [u8]) {
        assert!(own.len() == received.len() && own.len().is_multiple_of(self.count));
        let piece = own.len() / self.count;
        self.meet(|| false);
        // SAFETY: both hold as many pieces as there are ranks.
        unsafe { ranks_all_to_all(self.of, own.as_ptr().cast(), piece, received.as_mut_ptr().cast()) };
    }

    fn gather_on_first(&self, own: &[u8], lengths: &[usize], all: &mut [u8]) {
        assert!(lengths.len() == self.count && own.len() == lengths[self.rank]);
        assert!(self.rank > 0 || all.len() == lengths.iter().sum::<usize>());
        self.meet(|| false);
        // SAFETY: rank 0's `all` has room for all lengths; the others' is not used.
        unsafe {
            let (own, length, all) = (own.as_ptr().cast(), own.len(), all.as_mut_ptr().cast());
            ranks_gather_on_first(self.of, own, length, all, lengths.as_ptr());
        }
    }

    fn finish(&self) {
        // SAFETY: the last call.
        unsafe { ranks_finish() };
    }

    fn abort(&self, code: u8) {
        // SAFETY: it does not return.
        unsafe { ranks_abort(c_int::from(code)) };
    }
}
