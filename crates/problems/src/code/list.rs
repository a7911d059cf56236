//! Small tasks on a list of integers: a few steps and a result; in words, as a Python program, and as a Rust
//! function that computes the answer without running a program.
//!
//! Left out: stories; the words only describe the steps.

use record::philox::Draws;
use serde_json::{Value, json};

/// A step from a list to a list, and its constant `k`, small and positive, or 0 if it has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    kind: Kind,
    k: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Even,
    Odd,
    Above,
    AtLeast,
    NoMultiples,
    Add,
    Times,
    Square,
    Absolute,
    Negate,
    Ascending,
    Descending,
    Reverse,
    Distinct,
    First,
    Last,
    Without,
    EverySecond,
    Differences,
    RunningSums,
}

use Kind::*;

/// The final result computed from the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fold {
    List,
    Sum,
    Count,
    Greatest,
    Smallest,
    Spread,
}

impl Kind {
    /// The step in words, and as a Python expression of the list `x`.
    fn texts(self) -> [&'static str; 2] {
        match self {
            Even => ["Keep only the even numbers.", "[v for v in x if v % 2 == 0]"],
            Odd => ["Keep only the odd numbers.", "[v for v in x if v % 2 == 1]"],
            Above => ["Keep only the numbers greater than {k}.", "[v for v in x if v > {k}]"],
            AtLeast => ["Keep only the numbers that are {k} or more.", "[v for v in x if v >= {k}]"],
            NoMultiples => ["Remove every multiple of {k} (0 is one).", "[v for v in x if v % {k} != 0]"],
            Add => ["Add {k} to each number.", "[v + {k} for v in x]"],
            Times => ["Multiply each number by {k}.", "[v * {k} for v in x]"],
            Square => ["Replace each number by its square.", "[v * v for v in x]"],
            Absolute => ["Replace each number by its absolute value.", "[abs(v) for v in x]"],
            Negate => ["Change the sign of each number.", "[-v for v in x]"],
            Ascending => ["Sort the numbers, the smallest first.", "sorted(x)"],
            Descending => ["Sort the numbers, the greatest first.", "sorted(x, reverse=True)"],
            Reverse => ["Turn the order round.", "x[::-1]"],
            Distinct => ["Of equal numbers keep only the first.", "list(dict.fromkeys(x))"],
            First => ["Keep the first {k} numbers, or all if there are fewer.", "x[:{k}]"],
            Last => ["Keep the last {k} numbers, or all if there are fewer.", "x[-{k}:]"],
            Without => ["Remove the first {k} numbers, or all if there are fewer.", "x[{k}:]"],
            EverySecond => ["Keep the first number, the third, the fifth and so on.", "x[::2]"],
            Differences => [
                "Replace the list by the differences of neighbours: each number but the first minus the one before it.",
                "[b - a for a, b in zip(x, x[1:])]",
            ],
            RunningSums => [
                "Replace each number by the sum of all up to and including it.",
                "[sum(x[:i + 1]) for i in range(len(x))]",
            ],
        }
    }
}

/// Kinds of steps in drawing order, each with similar kinds and the change of its constant in them.
const SLIPS: [(Kind, &[(Kind, i64)]); 20] = [
    (Even, &[(Odd, 0)]),
    (Odd, &[(Even, 0)]),
    (Above, &[(AtLeast, 0), (Above, 1)]),
    (AtLeast, &[(Above, 0)]),
    (NoMultiples, &[(NoMultiples, 1)]),
    (Add, &[(Add, 1), (Times, 0)]),
    (Times, &[(Add, 0), (Times, 1)]),
    (Square, &[(Times, 2)]),
    (Absolute, &[(Negate, 0)]),
    (Negate, &[(Absolute, 0)]),
    (Ascending, &[(Descending, 0)]),
    (Descending, &[(Ascending, 0), (Reverse, 0)]),
    (Reverse, &[(Descending, 0)]),
    (Distinct, &[(Ascending, 0)]),
    (First, &[(First, -1), (Last, 0)]),
    (Last, &[(First, 0)]),
    (Without, &[(Without, 1), (First, 0)]),
    (EverySecond, &[(First, 2)]),
    (Differences, &[(RunningSums, 0)]),
    (RunningSums, &[(Differences, 0)]),
];

impl Step {
    fn draw(draws: &mut Draws) -> Step {
        let small = 2 + i64::from(draws.below(4));
        // Differences and running sums are rare.
        let kind = match draws.below(19) {
            18 => SLIPS[18 + draws.below(2) as usize].0,
            common => SLIPS[common as usize].0,
        };
        let k = match kind {
            Above | AtLeast => i64::from(draws.below(6)),
            NoMultiples => small + 1,
            Without => small - 1,
            Add | Times | First | Last => small,
            _ => 0,
        };
        Step { kind, k }
    }

    fn words(self) -> String {
        match self {
            Step { kind: Without, k: 1 } => "Remove the first number, if there is one.".to_owned(),
            Step { kind, k } => kind.texts()[0].replace("{k}", &k.to_string()),
        }
    }

    fn python(self) -> String {
        self.kind.texts()[1].replace("{k}", &self.k.to_string())
    }

    fn apply(self, x: &[i64]) -> Vec<i64> {
        let k = self.k;
        let keep = |test: &dyn Fn(i64) -> bool| x.iter().copied().filter(|&v| test(v)).collect();
        let each = |change: &dyn Fn(i64) -> i64| x.iter().map(|&v| change(v)).collect();
        let mut list = x.to_vec();
        match self.kind {
            Even => return keep(&|v| v.rem_euclid(2) == 0),
            Odd => return keep(&|v| v.rem_euclid(2) == 1),
            Above => return keep(&|v| v > k),
            AtLeast => return keep(&|v| v >= k),
            NoMultiples => return keep(&|v| v.rem_euclid(k) != 0),
            Add => return each(&|v| v + k),
            Times => return each(&|v| v * k),
            Square => return each(&|v| v * v),
            Absolute => return each(&i64::abs),
            Negate => return each(&|v| -v),
            Ascending => list.sort_unstable(),
            Descending => list.sort_unstable_by(|a, b| b.cmp(a)),
            Reverse => list.reverse(),
            Distinct => {
                let mut seen = std::collections::HashSet::new();
                list.retain(|v| seen.insert(*v));
            }
            First => list.truncate(k as usize),
            Last => list = list.split_off(list.len().saturating_sub(k as usize)),
            Without => list = list.split_off(list.len().min(k as usize)),
            EverySecond => list = list.into_iter().step_by(2).collect(),
            Differences => list = x.windows(2).map(|pair| pair[1] - pair[0]).collect(),
            RunningSums => (1..list.len()).for_each(|at| list[at] += list[at - 1]),
        }
        list
    }

    /// Similar steps, for wrong programs.
    fn slips(self) -> impl Iterator<Item = Step> {
        SLIPS[self.kind as usize].1.iter().map(move |(kind, more)| Step { kind: *kind, k: self.k + more })
    }
}

impl Fold {
    const ALL: [Fold; 6] = [Fold::List, Fold::Sum, Fold::Count, Fold::Greatest, Fold::Smallest, Fold::Spread];

    /// The result in words and in Python, and a similar one.
    fn row(self) -> (&'static str, &'static str, Fold) {
        match self {
            Fold::List => ("the list that is left", "x", Fold::Sum),
            Fold::Sum => {
                ("the sum of the numbers that are left (0 if there are none)", "sum(x)", Fold::Count)
            }
            Fold::Count => ("how many numbers are left", "len(x)", Fold::Sum),
            Fold::Greatest => {
                ("the greatest number that is left (0 if there is none)", "max(x, default=0)", Fold::Smallest)
            }
            Fold::Smallest => {
                ("the smallest number that is left (0 if there is none)", "min(x, default=0)", Fold::Greatest)
            }
            Fold::Spread => (
                "the greatest minus the smallest number that is left (0 if there is none)",
                "max(x, default=0) - min(x, default=0)",
                Fold::Greatest,
            ),
        }
    }

    fn apply(self, x: &[i64]) -> Value {
        let greatest = x.iter().copied().max().unwrap_or(0);
        let smallest = x.iter().copied().min().unwrap_or(0);
        match self {
            Fold::List => json!(x),
            Fold::Sum => json!(x.iter().sum::<i64>()),
            Fold::Count => json!(x.len()),
            Fold::Greatest => json!(greatest),
            Fold::Smallest => json!(smallest),
            Fold::Spread => json!(greatest - smallest),
        }
    }
}

/// A task: steps, then a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pipeline {
    /// The steps in order.
    pub steps: Vec<Step>,
    /// The result.
    pub fold: Fold,
}

impl Pipeline {
    /// A pipeline of `steps` different steps. Repeated squares would exceed 64 bits.
    pub fn draw(steps: usize, draws: &mut Draws) -> Pipeline {
        let mut drawn: Vec<Step> = Vec::with_capacity(steps);
        while drawn.len() < steps {
            let step = Step::draw(draws);
            if !drawn.contains(&step) {
                drawn.push(step);
            }
        }
        Pipeline { steps: drawn, fold: Fold::ALL[draws.below(Fold::ALL.len() as u32) as usize] }
    }

    /// The answer for `x`: a list or a number.
    pub fn answer(&self, x: &[i64]) -> Value {
        self.fold.apply(&self.steps.iter().fold(x.to_vec(), |list, step| step.apply(&list)))
    }

    /// The task in words, without the format of input and output.
    pub fn words(&self) -> String {
        let mut text = String::from("Given is a list of whole numbers.\n");
        for (step, number) in self.steps.iter().zip(1..) {
            text.push_str(&format!("{number}. {}\n", step.words()));
        }
        text.push_str(&format!("The result is {}.\n", self.fold.row().0));
        text
    }

    /// A program that reads from standard input.
    pub fn script(&self) -> String {
        let result = self.fold.row().1;
        let print = if self.fold == Fold::List { "print(*x)" } else { &format!("print({result})") };
        format!("input()\nx = list(map(int, input().split()))\n{}{print}\n", self.lines(""))
    }

    /// A function `solve(x)`.
    pub fn function(&self) -> String {
        format!("def solve(x):\n{}    return {}\n", self.lines("    "), self.fold.row().1)
    }

    fn lines(&self, indent: &str) -> String {
        self.steps.iter().map(|step| format!("{indent}x = {}\n", step.python())).collect()
    }

    /// Similar pipelines for wrong programs: with a step changed or omitted, or another result.
    pub fn slips(&self) -> Vec<Pipeline> {
        let mut slips = Vec::new();
        for (place, step) in self.steps.iter().enumerate() {
            for other in step.slips() {
                let mut slip = self.clone();
                slip.steps[place] = other;
                slips.push(slip);
            }
            let mut forgotten = self.clone();
            forgotten.steps.remove(place);
            slips.push(forgotten);
        }
        slips.push(Pipeline { fold: self.fold.row().2, ..self.clone() });
        slips
    }
}

/// A list for a test: mostly short, sometimes empty, with repetitions and negative numbers.
pub fn draw_list(draws: &mut Draws) -> Vec<i64> {
    let length = if draws.below(12) == 0 { 0 } else { 1 + draws.below(9) };
    (0..length).map(|_| i64::from(draws.below(22)) - 7).collect()
}
