//! Plan-Path: lead a walker over a board with walls to its goal, a few moves a turn.
//!
//! From Stronger-MAS (arXiv 2510.11062). In the workflow `team` a tool proposes and the planner, who sees the
//! proposal, decides; only the planner's moves move the walker, and its position persists between turns. The
//! tool is scored as if its proposal were carried out. In the workflow `single` the planner is alone.
//!
//! - [`map`]: the board and its distances; - [`rules`]: moves and rewards;

pub mod map;
pub mod rules;

use record::failure::{Failure, Result};
use serde_json::Value;

use crate::environment::{
    Demonstration, Demonstrations, Environment, Order, RewardRange, Selection, State, Tasks, Workflow,
};
use crate::settings::Setting;

/// The environment.
pub struct PlanPath;

static WORKFLOWS: [Workflow; 2] = [
    Workflow { name: "team", agents: &["tool", "planner"], order: Order::Sequential },
    Workflow { name: "single", agents: &["planner"], order: Order::Sequential },
];

impl Environment for PlanPath {
    fn name(&self) -> &'static str {
        "plan-path"
    }

    fn summary(&self) -> &'static str {
        "walk to a goal round walls, a few moves a turn"
    }

    fn workflows(&self) -> &'static [Workflow] {
        &WORKFLOWS
    }

    fn settings(&self) -> &'static [Setting] {
        &[]
    }

    fn reward_range(&self) -> RewardRange {
        RewardRange { team: (0.0, 1.0), local: (0.0, 1.0) }
    }

    fn tasks(&self, _: &Selection) -> Result<Tasks<'_>> {
        Err(Failure::work("not yet"))
    }

    fn reset(&self, _: &Value, _: &str) -> Result<Box<dyn State>> {
        Err(Failure::work("not yet"))
    }

    fn restore(&self, _: &Value) -> Result<Box<dyn State>> {
        Err(Failure::work("not yet"))
    }

    fn demonstrators(&self) -> &'static [(&'static str, f64)] {
        &[]
    }

    fn demonstrations(&self, _: &Demonstration) -> Result<Demonstrations<'_>> {
        Err(Failure::work("not yet"))
    }
}
