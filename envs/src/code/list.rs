//! Small tasks on a list of whole numbers: a few steps and a result, in words, as a program, and as a function in Rust
//! that knows the answer without running any program.
//!
//! Left out: names of things and stories around them; the words say what is to be done and nothing else.

use record::philox::Draws;

/// A step from a list to a list. Constants are small and positive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Even,
    Odd,
    Above(i64),
    AtLeast(i64),
    NoMultiples(i64),
    Add(i64),
    Times(i64),
    Square,
    Absolute,
    Negate,
    Ascending,
    Descending,
    Reverse,
    Distinct,
    First(i64),
    Last(i64),
    Without(i64),
    EverySecond,
    Differences,
    RunningSums,
}

/// What is made of the list in the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fold {
    List,
    Sum,
    Count,
    Greatest,
    Smallest,
    Spread,
}

/// A result: a list or a number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    List(Vec<i64>),
    Number(i64),
}

impl Step {
    fn draw(draws: &mut Draws) -> Step {
        let small = 2 + i64::from(draws.below(4));
        match draws.below(19) {
            0 => Step::Even,
            1 => Step::Odd,
            2 => Step::Above(i64::from(draws.below(6))),
            3 => Step::AtLeast(i64::from(draws.below(6))),
            4 => Step::NoMultiples(1 + small),
            5 => Step::Add(small),
            6 => Step::Times(small),
            7 => Step::Square,
            8 => Step::Absolute,
            9 => Step::Negate,
            10 => Step::Ascending,
            11 => Step::Descending,
            12 => Step::Reverse,
            13 => Step::Distinct,
            14 => Step::First(small),
            15 => Step::Last(small),
            16 => Step::Without(small - 1),
            17 => Step::EverySecond,
            _ => [Step::Differences, Step::RunningSums][draws.below(2) as usize],
        }
    }

    /// The step in words, after "it".
    fn words(self) -> String {
        match self {
            Step::Even => "Keep only the even numbers.".to_owned(),
            Step::Odd => "Keep only the odd numbers.".to_owned(),
            Step::Above(k) => format!("Keep only the numbers greater than {k}."),
            Step::AtLeast(k) => format!("Keep only the numbers that are {k} or more."),
            Step::NoMultiples(k) => format!("Remove every multiple of {k} (0 is one)."),
            Step::Add(k) => format!("Add {k} to each number."),
            Step::Times(k) => format!("Multiply each number by {k}."),
            Step::Square => "Replace each number by its square.".to_owned(),
            Step::Absolute => "Replace each number by its absolute value.".to_owned(),
            Step::Negate => "Change the sign of each number.".to_owned(),
            Step::Ascending => "Sort the numbers, the smallest first.".to_owned(),
            Step::Descending => "Sort the numbers, the greatest first.".to_owned(),
            Step::Reverse => "Turn the order round.".to_owned(),
            Step::Distinct => "Of equal numbers keep only the first.".to_owned(),
            Step::First(k) => format!("Keep the first {k} numbers, or all if there are fewer."),
            Step::Last(k) => format!("Keep the last {k} numbers, or all if there are fewer."),
            Step::Without(1) => "Remove the first number, if there is one.".to_owned(),
            Step::Without(k) => format!("Remove the first {k} numbers, or all if there are fewer."),
            Step::EverySecond => "Keep the first number, the third, the fifth and so on.".to_owned(),
            Step::Differences => {
                "Replace the list by the differences of neighbours: each number but the first minus the one before it."
                    .to_owned()
            }
            Step::RunningSums => "Replace each number by the sum of all up to and including it.".to_owned(),
        }
    }

    /// The step as a Python expression of the list `x`.
    fn python(self) -> String {
        match self {
            Step::Even => "[v for v in x if v % 2 == 0]".to_owned(),
            Step::Odd => "[v for v in x if v % 2 == 1]".to_owned(),
            Step::Above(k) => format!("[v for v in x if v > {k}]"),
            Step::AtLeast(k) => format!("[v for v in x if v >= {k}]"),
            Step::NoMultiples(k) => format!("[v for v in x if v % {k} != 0]"),
            Step::Add(k) => format!("[v + {k} for v in x]"),
            Step::Times(k) => format!("[v * {k} for v in x]"),
            Step::Square => "[v * v for v in x]".to_owned(),
            Step::Absolute => "[abs(v) for v in x]".to_owned(),
            Step::Negate => "[-v for v in x]".to_owned(),
            Step::Ascending => "sorted(x)".to_owned(),
            Step::Descending => "sorted(x, reverse=True)".to_owned(),
            Step::Reverse => "x[::-1]".to_owned(),
            Step::Distinct => "list(dict.fromkeys(x))".to_owned(),
            Step::First(k) => format!("x[:{k}]"),
            Step::Last(k) => format!("x[-{k}:]"),
            Step::Without(k) => format!("x[{k}:]"),
            Step::EverySecond => "x[::2]".to_owned(),
            Step::Differences => "[b - a for a, b in zip(x, x[1:])]".to_owned(),
            Step::RunningSums => "[sum(x[:i + 1]) for i in range(len(x))]".to_owned(),
        }
    }

    fn apply(self, x: &[i64]) -> Vec<i64> {
        let keep = |test: &dyn Fn(i64) -> bool| x.iter().copied().filter(|&v| test(v)).collect();
        let each = |change: &dyn Fn(i64) -> i64| x.iter().map(|&v| change(v)).collect();
        let mut list = x.to_vec();
        match self {
            Step::Even => return keep(&|v| v.rem_euclid(2) == 0),
            Step::Odd => return keep(&|v| v.rem_euclid(2) == 1),
            Step::Above(k) => return keep(&|v| v > k),
            Step::AtLeast(k) => return keep(&|v| v >= k),
            Step::NoMultiples(k) => return keep(&|v| v.rem_euclid(k) != 0),
            Step::Add(k) => return each(&|v| v + k),
            Step::Times(k) => return each(&|v| v * k),
            Step::Square => return each(&|v| v * v),
            Step::Absolute => return each(&i64::abs),
            Step::Negate => return each(&|v| -v),
            Step::Ascending => list.sort_unstable(),
            Step::Descending => {
                list.sort_unstable();
                list.reverse();
            }
            Step::Reverse => list.reverse(),
            Step::Distinct => {
                let mut seen = std::collections::HashSet::new();
                list.retain(|v| seen.insert(*v));
            }
            Step::First(k) => list.truncate(k as usize),
            Step::Last(k) => list = list.split_off(list.len().saturating_sub(k as usize)),
            Step::Without(k) => list = list.split_off(list.len().min(k as usize)),
            Step::EverySecond => list = list.into_iter().step_by(2).collect(),
            Step::Differences => list = x.windows(2).map(|pair| pair[1] - pair[0]).collect(),
            Step::RunningSums => {
                let mut sum = 0;
                for v in &mut list {
                    sum += *v;
                    *v = sum;
                }
            }
        }
        list
    }

    /// Steps that are easily taken for this one.
    fn slips(self) -> Vec<Step> {
        match self {
            Step::Even => vec![Step::Odd],
            Step::Odd => vec![Step::Even],
            Step::Above(k) => vec![Step::AtLeast(k), Step::Above(k + 1)],
            Step::AtLeast(k) => vec![Step::Above(k)],
            Step::NoMultiples(k) => vec![Step::NoMultiples(k + 1)],
            Step::Add(k) => vec![Step::Add(k + 1), Step::Times(k)],
            Step::Times(k) => vec![Step::Add(k), Step::Times(k + 1)],
            Step::Square => vec![Step::Times(2)],
            Step::Absolute => vec![Step::Negate],
            Step::Negate => vec![Step::Absolute],
            Step::Ascending => vec![Step::Descending],
            Step::Descending => vec![Step::Ascending, Step::Reverse],
            Step::Reverse => vec![Step::Descending],
            Step::Distinct => vec![Step::Ascending],
            Step::First(k) => vec![Step::First(k - 1), Step::Last(k)],
            Step::Last(k) => vec![Step::First(k)],
            Step::Without(k) => vec![Step::Without(k + 1), Step::First(k)],
            Step::EverySecond => vec![Step::First(2)],
            Step::Differences => vec![Step::RunningSums],
            Step::RunningSums => vec![Step::Differences],
        }
    }
}

impl Fold {
    const ALL: [Fold; 6] = [Fold::List, Fold::Sum, Fold::Count, Fold::Greatest, Fold::Smallest, Fold::Spread];

    fn words(self) -> &'static str {
        match self {
            Fold::List => "the list that is left",
            Fold::Sum => "the sum of the numbers that are left (0 if there are none)",
            Fold::Count => "how many numbers are left",
            Fold::Greatest => "the greatest number that is left (0 if there is none)",
            Fold::Smallest => "the smallest number that is left (0 if there is none)",
            Fold::Spread => "the greatest minus the smallest number that is left (0 if there is none)",
        }
    }

    fn python(self) -> &'static str {
        match self {
            Fold::List => "x",
            Fold::Sum => "sum(x)",
            Fold::Count => "len(x)",
            Fold::Greatest => "max(x, default=0)",
            Fold::Smallest => "min(x, default=0)",
            Fold::Spread => "max(x, default=0) - min(x, default=0)",
        }
    }

    fn apply(self, x: Vec<i64>) -> Answer {
        let greatest = x.iter().copied().max().unwrap_or(0);
        let smallest = x.iter().copied().min().unwrap_or(0);
        Answer::Number(match self {
            Fold::List => return Answer::List(x),
            Fold::Sum => x.iter().sum(),
            Fold::Count => x.len() as i64,
            Fold::Greatest => greatest,
            Fold::Smallest => smallest,
            Fold::Spread => greatest - smallest,
        })
    }

    fn slip(self) -> Fold {
        match self {
            Fold::List => Fold::Sum,
            Fold::Sum => Fold::Count,
            Fold::Count => Fold::Sum,
            Fold::Greatest => Fold::Smallest,
            Fold::Smallest => Fold::Greatest,
            Fold::Spread => Fold::Greatest,
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
    /// A pipeline of `steps` steps.
    pub fn draw(steps: usize, draws: &mut Draws) -> Pipeline {
        let mut drawn: Vec<Step> = Vec::with_capacity(steps);
        while drawn.len() < steps {
            let step = Step::draw(draws);
            // A step that is there already says little, and squares of squares of squares leave 64 bits.
            if !drawn.contains(&step) {
                drawn.push(step);
            }
        }
        Pipeline { steps: drawn, fold: Fold::ALL[draws.below(Fold::ALL.len() as u32) as usize] }
    }

    /// The answer for `x`.
    pub fn answer(&self, x: &[i64]) -> Answer {
        let list = self.steps.iter().fold(x.to_vec(), |list, step| step.apply(&list));
        self.fold.apply(list)
    }

    /// The task in words, without how the list comes in and the result goes out.
    pub fn words(&self) -> String {
        let mut text = String::from("Given is a list of whole numbers.\n");
        for (step, number) in self.steps.iter().zip(1..) {
            text.push_str(&format!("{number}. {}\n", step.words()));
        }
        text.push_str(&format!("The result is {}.\n", self.fold.words()));
        text
    }

    /// A program that reads from standard input.
    pub fn script(&self) -> String {
        let print =
            if self.fold == Fold::List { "print(*x)" } else { &format!("print({})", self.fold.python()) };
        format!("input()\nx = list(map(int, input().split()))\n{}{print}\n", self.lines(""))
    }

    /// A function `solve(x)`.
    pub fn function(&self) -> String {
        format!("def solve(x):\n{}    return {}\n", self.lines("    "), self.fold.python())
    }

    fn lines(&self, indent: &str) -> String {
        self.steps.iter().map(|step| format!("{indent}x = {}\n", step.python())).collect()
    }

    /// Pipelines that are easily taken for this one.
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
        slips.push(Pipeline { fold: self.fold.slip(), ..self.clone() });
        slips
    }
}

/// A list for a test: mostly short, sometimes empty, with repetitions and negative numbers.
pub fn draw_list(draws: &mut Draws) -> Vec<i64> {
    let length = if draws.below(12) == 0 { 0 } else { 1 + draws.below(9) };
    (0..length).map(|_| i64::from(draws.below(22)) - 7).collect()
}
