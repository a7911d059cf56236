//! `update`: turns samples with advantages into the next version of each policy.

pub mod aggregate;
pub mod arguments;
pub mod backend;
pub mod checkpoint;
mod kernels;
pub mod learner;
mod logprobs;
pub mod loss;
mod metrics;
mod minibatch;
pub mod model;
mod objective;
pub mod optimizer;
mod output;
mod overlap;
mod parts;
pub mod plan;
mod policy_update;
pub mod publish;
pub mod ranks;
mod reader;
pub mod samples;
pub mod stage;
mod timing;
mod trainer;
pub mod tree;
pub mod weights;
