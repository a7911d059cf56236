//! The rules of the table: who holds which fork, who eats, and the most that can be eaten.
//!
//! A step: hungry philosophers put forks down, then free forks are grabbed, the lower number first. Whoever holds both of its forks
//! eats, and gives both back at the end of the next step. All hungry with one fork each is a deadlock. The mechanics follow DPBench
//! (arXiv 2602.13255), except that an eater's words are ignored. There its release frees forks before others grab, and takes them
//! away again, so a neighbor can eat with a fork that is free, too.

/// Meals at most in 12 steps at tables of 2 to 15: a search over all states up to 6 (the tests), schedules around the table
/// beyond.
pub const OPTIMUM: [u32; 14] = [4, 6, 8, 11, 13, 15, 18, 19, 22, 24, 27, 29, 31, 33];

/// What a philosopher does in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    GrabLeft,
    GrabRight,
    /// Puts its forks down.
    Release,
    Wait,
}

/// Who holds each fork. Fork i is left of philosopher i, and right of the one before.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Forks(pub Vec<Option<usize>>);

/// What a step brought each philosopher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Begins to eat.
    pub begins: Vec<bool>,
    /// Changed something, or was eating.
    pub did: Vec<bool>,
}

impl Forks {
    /// All forks of a table of `count` lie free.
    pub fn free(count: usize) -> Forks {
        Forks(vec![None; count])
    }

    /// The numbers of a philosopher's left and right fork.
    pub fn sides(&self, philosopher: usize) -> [usize; 2] {
        [philosopher, (philosopher + 1) % self.0.len()]
    }

    pub fn eats(&self, philosopher: usize) -> bool {
        self.sides(philosopher).iter().all(|fork| self.0[*fork] == Some(philosopher))
    }

    /// Returns true if all are hungry with one fork each.
    pub fn is_deadlock(&self) -> bool {
        let mut holders: Vec<usize> = self.0.iter().flatten().copied().collect();
        holders.sort_unstable();
        holders.iter().copied().eq(0..self.0.len())
    }

    /// One step. An action that is none (`None`) does nothing.
    pub fn step(&mut self, actions: &[Option<Action>]) -> Step {
        let count = self.0.len();
        let eats: Vec<bool> = (0..count).map(|philosopher| self.eats(philosopher)).collect();
        let mut did = eats.clone();
        for (philosopher, action) in actions.iter().enumerate() {
            if *action == Some(Action::Release) && !eats[philosopher] {
                for fork in self.0.iter_mut().filter(|fork| **fork == Some(philosopher)) {
                    (*fork, did[philosopher]) = (None, true);
                }
            }
        }
        for (philosopher, action) in actions.iter().enumerate() {
            let [left, right] = self.sides(philosopher);
            let wanted = match action {
                Some(Action::GrabLeft) => left,
                Some(Action::GrabRight) => right,
                _ => continue,
            };
            if !eats[philosopher] && self.0[wanted].is_none() {
                (self.0[wanted], did[philosopher]) = (Some(philosopher), true);
            }
        }
        let begins = (0..count).map(|philosopher| !eats[philosopher] && self.eats(philosopher)).collect();
        // What an eater gives back can be grabbed in the next step.
        self.0.iter_mut().for_each(|fork| *fork = fork.filter(|holder| !eats[*holder]));
        Step { begins, did }
    }
}

/// 1 less the normalized Gini coefficient of the meals: 1 if all ate the same, also if nobody ate.
pub fn fairness(meals: &[u32]) -> f64 {
    let (count, total) = (meals.len() as f64, f64::from(meals.iter().sum::<u32>()));
    if total == 0.0 || count < 2.0 {
        return 1.0;
    }
    let apart: u32 = meals.iter().flat_map(|one| meals.iter().map(|other| one.abs_diff(*other))).sum();
    1.0 - f64::from(apart) / (2.0 * count * total) * count / (count - 1.0)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    /// The most meals of `count` philosophers in `turns` steps, by a search over all states.
    fn most_meals(count: usize, turns: u32) -> u32 {
        let start = Forks::free(count);
        let (mut moves, mut open) = (HashMap::new(), vec![start.clone()]);
        while let Some(forks) = open.pop() {
            if moves.contains_key(&forks) || forks.is_deadlock() {
                continue;
            }
            let best = transitions(&forks);
            open.extend(best.keys().cloned());
            moves.insert(forks, best);
        }
        let mut worth: HashMap<&Forks, u32> = HashMap::new();
        for _ in 0..turns {
            let of = |best: &HashMap<Forks, u32>| {
                best.iter()
                    .map(|(after, meals)| meals + worth.get(after).copied().unwrap_or(0))
                    .max()
                    .unwrap_or(0)
            };
            worth = moves.iter().map(|(forks, best)| (forks, of(best))).collect();
        }
        worth.get(&start).copied().unwrap_or(0)
    }

    /// The states that a step can lead to, with the most meals on the way to each. Actions that cannot matter are left out.
    fn transitions(forks: &Forks) -> HashMap<Forks, u32> {
        let count = forks.0.len();
        let choices: Vec<Vec<Action>> = (0..count)
            .map(|philosopher| {
                let [left, right] = forks.sides(philosopher);
                // A fork that a hungry neighbor holds may be put down in the same step.
                let open = |fork: usize| match forks.0[fork] {
                    Some(holder) => holder != philosopher && !forks.eats(holder),
                    None => true,
                };
                let mut actions = vec![Action::Wait];
                if !forks.eats(philosopher) {
                    actions.extend(open(left).then_some(Action::GrabLeft));
                    actions.extend(open(right).then_some(Action::GrabRight));
                    actions.extend(forks.0.contains(&Some(philosopher)).then_some(Action::Release));
                }
                actions
            })
            .collect();
        let mut best = HashMap::new();
        let combinations: usize = choices.iter().map(Vec::len).product();
        for mut number in 0..combinations {
            let actions: Vec<Option<Action>> = choices
                .iter()
                .map(|actions| {
                    let action = actions[number % actions.len()];
                    number /= actions.len();
                    Some(action)
                })
                .collect();
            let mut after = forks.clone();
            let meals = after.step(&actions).begins.iter().filter(|begins| **begins).count() as u32;
            best.entry(after).and_modify(|most: &mut u32| *most = meals.max(*most)).or_insert(meals);
        }
        best
    }

    /// Meals by philosopher, and steps, of those who grab right first where `right_first` says so.
    fn eaten(count: usize, right_first: impl Fn(usize) -> bool) -> (Vec<u32>, u32) {
        let (mut forks, mut meals) = (Forks::free(count), vec![0; count]);
        for step in 1..=12 {
            let actions: Vec<Option<Action>> = (0..count)
                .map(|philosopher| {
                    let second = forks.0.contains(&Some(philosopher));
                    Some(if right_first(philosopher) == second {
                        Action::GrabLeft
                    } else {
                        Action::GrabRight
                    })
                })
                .collect();
            let begins = forks.step(&actions).begins;
            meals.iter_mut().zip(begins).for_each(|(meals, begins)| *meals += u32::from(begins));
            if forks.is_deadlock() {
                return (meals, step);
            }
        }
        (meals, 12)
    }

    #[test]
    fn the_optimum_is_that_of_a_search() {
        for count in 2..=6 {
            assert_eq!(most_meals(count, 12), OPTIMUM[count - 2], "{count}");
        }
        let shorter = [(3, 6, 3), (3, 9, 4), (5, 6, 5), (5, 9, 8)];
        for (count, turns, most) in shorter {
            assert_eq!(most_meals(count, turns), most, "{count} {turns}");
        }
    }

    #[test]
    fn rules_around_the_table_eat_what_is_known_of_them() {
        let all = |rule: fn(usize, usize) -> bool| -> Vec<u32> {
            (3..=15).map(|count| eaten(count, |one| rule(one, count)).0.iter().sum()).collect()
        };
        assert_eq!(all(|one, _| one % 2 == 1), [6, 6, 10, 10, 14, 14, 18, 18, 22, 22, 26, 26, 30]);
        assert_eq!(all(|one, count| one + 1 == count), [5, 7, 8, 9, 10, 10, 10, 10, 10, 10, 10, 10, 10]);
        assert_eq!(eaten(5, |one| one % 2 == 1).0, [3, 3, 0, 4, 0]);
        assert_eq!(eaten(5, |_| false), (vec![0; 5], 1), "all grab left first");
    }

    #[test]
    fn fairness_of_nobody_is_whole() {
        let of = |meals: &[u32]| (fairness(meals) * 1e6).round() / 1e6;
        assert_eq!(of(&[2, 2, 2, 2, 3]), 0.909_091);
        assert_eq!((of(&[3, 0, 0, 0, 0]), of(&[4, 2, 4, 2, 0]), of(&[0; 5])), (0.0, 0.583_333, 1.0));
    }

    /// An eater's words free no fork within the step, and forks that are given back are free a step later.
    #[test]
    fn a_meal_takes_three_steps() {
        let mut forks = Forks::free(2);
        let mut step = |first, second| forks.step(&[Some(first), Some(second)]).begins;
        assert_eq!(step(Action::GrabLeft, Action::Wait), [false, false]);
        assert_eq!(step(Action::GrabRight, Action::GrabLeft), [true, false]);
        assert_eq!(step(Action::Release, Action::GrabLeft), [false, false]);
        assert_eq!(step(Action::Wait, Action::GrabLeft), [false, false]);
        assert_eq!(step(Action::Wait, Action::GrabRight), [false, true]);
    }
}
