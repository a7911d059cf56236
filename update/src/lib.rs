//! `update`: turns samples with advantages into the next version of each policy.

pub mod aggregate;
pub mod arguments;
pub mod backend;
pub mod checkpoint;
pub mod kernels;
pub mod learner;
pub mod logprobs;
pub mod loss;
pub mod metrics;
pub mod minibatch;
pub mod model;
pub mod objective;
pub mod optimizer;
pub mod output;
pub mod plan;
pub mod policy_update;
pub mod publish;
pub mod reader;
pub mod samples;
pub mod stage;
pub mod timing;
pub mod trainer;
pub mod tree;
pub mod weights;
