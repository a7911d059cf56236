//! Placeholder until the stage lands.
fn main() {}
