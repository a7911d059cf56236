//! Advantages become new weights: the numerics and the stage around them.

pub mod aggregate;
pub mod arguments;
pub mod backend;
pub mod batch;
pub mod checkpoint;
pub mod clock;
pub mod intake;
pub mod kernels;
pub mod learner;
pub mod loss;
pub mod memory;
pub mod metrics;
pub mod model;
pub mod objective;
pub mod optimizer;
pub mod output;
pub mod plan;
pub mod publish;
pub mod run;
pub mod samples;
pub mod scores;
pub mod stage;
pub mod stored;
pub mod train;
pub mod tree;
pub mod weights;
