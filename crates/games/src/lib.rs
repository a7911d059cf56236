//! Games on boards. A game is one module that implements `environment::Environment` and `environment::State`. [`grid`] is the common part of the worlds in which a tool proposes and a planner decides.

pub mod grid;
pub mod plan_path;
pub mod sokoban;
pub mod sudoku;
