//! `report elo`: ratings of the versions of a policy, from games that they played against each other.
//!
//! Ratings are the maximum likelihood of the model of Bradley and Terry (Biometrika 39, 1952): a beats b with
//! probability 1 / (1 + 10^((R_b − R_a) / 400)), which is Elo's scale, and a draw counts as half a win for
//! both. The oldest version is anchored at 0. A standard error is of the difference to it, from the inverse
//! of the observed information. Left out: the advantage of a seat, so let each pair play both ways.

use std::collections::{BTreeMap, HashMap};

use record::failure::{Failure, Result};
use record::line::{self, Episode};
use record::read::{Kind, Line, Reader, VERSION};
use record::sample::Sample;
use record::stream::Stream;
use record::write::{self, Writer};
use serde::Deserialize;
use serde_json::json;

use crate::arguments::{Elo, TableFormat};
use crate::run_directory;
use crate::table::{aligned, or_dash};

/// Elo's scale: 400 points are odds of ten to one.
const SCALE: f64 = 400.0 / std::f64::consts::LN_10;
/// Newton's method converges in a dozen steps; this many are a failure.
const MOST_STEPS: usize = 200;

/// Reads streams of games and prints the ratings.
///
/// # Errors
/// A bad or incomplete stream, games without results, or without a finite maximum (65); I/O (74).
pub fn run(arguments: &Elo) -> Result<()> {
    let mut games = Games::default();
    for path in &arguments.files {
        let input = run_directory::open_stream(path)?;
        games.read(Reader::new(&path.display().to_string(), input))?;
    }
    if arguments.files.is_empty() {
        games.read(Reader::stdin())?;
    }
    if games.scores.is_empty() {
        let cause = match games.unpaid {
            0 => "no game between two versions",
            _ => "no episode says what each agent earned (`returns`)",
        };
        return Err(Failure::data(cause).hint(
            "let two versions play, rollout --policy first=RUN/policies/NAME/step-000010 --policy second=…, in an environment that \
             pays both players by name (`rewards.local`)",
        ));
    }
    let table = games.table()?;
    if arguments.format == TableFormat::Table {
        return write::stdout(printed(&table).as_bytes());
    }
    let mut writer = Writer::stdout();
    for Rating { player, score: [won, drawn, lost], rating, error } in &table {
        let line = json!({"type": "elo", "v": VERSION, "version": player, "won": won, "drawn": drawn, "lost": lost,
            "elo": rating, "error": error});
        if let Some(line) = line.as_object() {
            writer.object(line)?;
        }
    }
    writer.flush()
}

/// A line of `sample` or `served`: who said it.
#[derive(Deserialize)]
struct Spoken {
    episode: String,
    agent: String,
    branch: u32,
    policy_version: Option<String>,
    model: Option<String>,
}

/// Versions and their scores against each other.
#[derive(Default)]
struct Games {
    /// By name, in the order of their first games.
    players: Vec<String>,
    /// Wins, draws and losses of the first against the second, by player.
    scores: BTreeMap<(usize, usize), [u64; 3]>,
    /// Episodes without results.
    unpaid: u64,
}

/// A row of the table.
struct Rating {
    player: String,
    /// Wins, draws, losses.
    score: [u64; 3],
    rating: f64,
    /// Of the difference to the anchor, which has none.
    error: Option<f64>,
}

impl Games {
    fn read<R: std::io::Read>(&mut self, mut reader: Reader<R>) -> Result<()> {
        let mut stream = Stream::new("report", false);
        // Episode and branch, then agent: the player.
        let mut seats: HashMap<(String, u64), BTreeMap<String, usize>> = HashMap::new();
        while let Some(line) = reader.next()? {
            match line.kind {
                Kind::Sample | Kind::Served => {
                    if line.kind == Kind::Sample {
                        stream.sample(&Sample::parse(&line)?, &line)?;
                    }
                    let spoken: Spoken = line::parse(&line)?;
                    let player = self.player(spoken.policy_version.or(spoken.model).unwrap_or_default());
                    let seat = seats.entry((spoken.episode, spoken.branch.into())).or_default();
                    seat.insert(spoken.agent, player);
                }
                Kind::Episode => {
                    let episode: Episode = line::parse(&line)?;
                    let branch = episode.extra.get("branch").and_then(serde_json::Value::as_u64).unwrap_or(0);
                    let seat = seats.remove(&(episode.episode.clone(), branch)).unwrap_or_default();
                    self.game(&line, &episode, &seat)?;
                }
                Kind::End => stream.end(&line)?,
                _ => {}
            }
        }
        stream.whole()
    }

    fn player(&mut self, name: String) -> usize {
        self.players.iter().position(|known| *known == name).unwrap_or_else(|| {
            self.players.push(name);
            self.players.len() - 1
        })
    }

    /// Counts the result of a game: of each pair of agents, whoever earned more has won.
    fn game(&mut self, line: &Line, episode: &Episode, seat: &BTreeMap<String, usize>) -> Result<()> {
        let Some(returns) = episode.extra.get("returns") else {
            self.unpaid += 1;
            return Ok(());
        };
        let returns: BTreeMap<String, f64> =
            serde_json::from_value(returns.clone()).map_err(|error| line.failure(error))?;
        let of = |agent: &String| Some((*seat.get(agent)?, *returns.get(agent)?));
        let earned: Vec<(usize, f64)> = returns.keys().filter_map(of).collect();
        for (place, &(one, first)) in earned.iter().enumerate() {
            for &(other, second) in earned[place + 1..].iter().filter(|(other, _)| *other != one) {
                let result = match first.total_cmp(&second) {
                    std::cmp::Ordering::Greater => 0,
                    std::cmp::Ordering::Equal => 1,
                    std::cmp::Ordering::Less => 2,
                };
                self.scores.entry((one, other)).or_default()[result] += 1;
                self.scores.entry((other, one)).or_default()[2 - result] += 1;
            }
        }
        Ok(())
    }

    /// The players by the step of their version, with their ratings; the first one is the anchor.
    fn table(&self) -> Result<Vec<Rating>> {
        let step = |player: &usize| {
            let step = self.players[*player].split(':').next().and_then(|step| step.parse::<u64>().ok());
            step.unwrap_or(u64::MAX)
        };
        let is_known = |player: &usize| self.scores.keys().any(|(one, _)| one == player);
        let mut order: Vec<usize> = (0..self.players.len()).filter(is_known).collect();
        order.sort_by_key(|player| (step(player), self.players[*player].clone()));
        let points = |one: usize, other: usize| -> f64 {
            let score = self.scores.get(&(order[one], order[other]));
            score.map_or(0.0, |[wins, draws, _]| *wins as f64 + 0.5 * *draws as f64)
        };
        let points: Vec<Vec<f64>> =
            (0..order.len()).map(|one| (0..order.len()).map(|other| points(one, other)).collect()).collect();
        if let Some((one, other)) = separated(&points) {
            return Err(Failure::data(format!(
                "{} and those that it beat never lost or drew against {}: no finite rating is the most likely",
                self.players[order[one]], self.players[order[other]]
            ))
            .hint("play more games, or versions that lie between them"));
        }
        let (ratings, errors) = most_likely(&points)?;
        let total = |player: &usize| {
            let own = self.scores.iter().filter(|((one, _), _)| one == player);
            own.fold([0; 3], |sum, (_, score)| [0, 1, 2].map(|place: usize| sum[place] + score[place]))
        };
        let row = |(place, player): (usize, &usize)| Rating {
            player: self.players[*player].clone(),
            score: total(player),
            rating: SCALE * ratings[place],
            error: (place > 0).then(|| SCALE * errors[place]),
        };
        Ok(order.iter().enumerate().map(row).collect())
    }
}

/// Two players, if any, of whom the second cannot be reached from the first by points against: there the
/// likelihood has no finite maximum (Ford, American Mathematical Monthly 64, 1957).
fn separated(points: &[Vec<f64>]) -> Option<(usize, usize)> {
    let count = points.len();
    for start in 0..count {
        let (mut seen, mut open) = (vec![false; count], vec![start]);
        while let Some(player) = open.pop() {
            if !std::mem::replace(&mut seen[player], true) {
                // Whoever took a point from the player.
                open.extend((0..count).filter(|&other| points[other][player] > 0.0));
            }
        }
        if let Some(other) = seen.iter().position(|seen| !seen) {
            return Some((start, other));
        }
    }
    None
}

/// The most likely strengths, natural logarithms of odds with the first at 0, and their standard errors, by
/// Newton's method.
fn most_likely(points: &[Vec<f64>]) -> Result<(Vec<f64>, Vec<f64>)> {
    let count = points.len();
    let mut strengths = vec![0.0_f64; count];
    for _ in 0..MOST_STEPS {
        let (mut gradient, mut information) = (vec![0.0; count - 1], vec![vec![0.0; count - 1]; count - 1]);
        for one in 0..count {
            for other in (0..count).filter(|other| *other != one) {
                let games = points[one][other] + points[other][one];
                let wins = 1.0 / (1.0 + (strengths[other] - strengths[one]).exp());
                let weight = games * wins * (1.0 - wins);
                if one > 0 {
                    gradient[one - 1] += points[one][other] - games * wins;
                    information[one - 1][one - 1] += weight;
                    if other > 0 {
                        information[one - 1][other - 1] -= weight;
                    }
                }
            }
        }
        let inverse = inverted(information).ok_or_else(|| {
            Failure::work("the ratings have no standard errors: their information is singular")
        })?;
        // Halved where it is long, because the likelihood is flat far out.
        let steps: Vec<f64> =
            inverse.iter().map(|row| row.iter().zip(&gradient).map(|(a, b)| a * b).sum()).collect();
        let longest = steps.iter().fold(0.0, |longest: f64, step| longest.max(step.abs()));
        let scale = if longest > 2.0 { 2.0 / longest } else { 1.0 };
        strengths[1..].iter_mut().zip(&steps).for_each(|(strength, step)| *strength += scale * step);
        if longest < 1e-12 {
            let errors = (0..count - 1).map(|place| inverse[place][place].sqrt());
            return Ok((strengths, [0.0].into_iter().chain(errors).collect()));
        }
    }
    Err(Failure::work("the ratings did not converge").hint("play more games"))
}

/// The inverse of a symmetric positive matrix, by Gauss and Jordan.
fn inverted(mut matrix: Vec<Vec<f64>>) -> Option<Vec<Vec<f64>>> {
    let count = matrix.len();
    let unit = |row: usize| (0..count).map(|column| f64::from(u8::from(row == column))).collect::<Vec<f64>>();
    let mut inverse: Vec<Vec<f64>> = (0..count).map(unit).collect();
    for place in 0..count {
        let pivot = Some(matrix[place][place]).filter(|pivot| *pivot > 0.0)?;
        for column in 0..count {
            matrix[place][column] /= pivot;
            inverse[place][column] /= pivot;
        }
        for row in (0..count).filter(|row| *row != place) {
            let factor = matrix[row][place];
            for column in 0..count {
                matrix[row][column] -= factor * matrix[place][column];
                inverse[row][column] -= factor * inverse[place][column];
            }
        }
    }
    Some(inverse)
}

fn printed(ratings: &[Rating]) -> String {
    let heads = ["version", "games", "won", "drawn", "lost", "Elo", "± s.e."];
    let mut table = vec![heads.map(str::to_owned).to_vec()];
    for Rating { player, score: [won, drawn, lost], rating, error } in ratings {
        let counts = [won + drawn + lost, *won, *drawn, *lost].map(|count| count.to_string());
        let [elo, error] =
            [Some(*rating), *error].map(|number| or_dash(number, |number| format!("{number:.0}")));
        table.push([std::slice::from_ref(player), &counts, &[elo, error]].concat());
    }
    aligned(&table, 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(one: f64, other: f64) {
        assert!((one - other).abs() < 1e-6, "{one} is not {other}");
    }

    /// 30 wins, 10 draws and 60 losses are 35 points of 100: 400 log10(35/65).
    #[test]
    fn draw_counts_as_half_a_win_for_both() {
        let games = Games {
            players: vec!["0:a".to_owned(), "8:b".to_owned()],
            scores: BTreeMap::from([((0, 1), [60, 10, 30]), ((1, 0), [30, 10, 60])]),
            unpaid: 0,
        };
        let table = games.table().expect("ratings");
        assert_eq!((table[0].rating, table[1].score), (0.0, [30, 10, 60]));
        close(table[1].rating, 400.0 * (35.0_f64 / 65.0).log10());
        close(table[1].error.expect("an error"), SCALE / (100.0 * 0.35 * 0.65_f64).sqrt());
    }

    #[test]
    fn ratings_of_three_players_predict_their_points() {
        let points = [vec![0.0, 20.0, 8.0], vec![30.0, 0.0, 21.5], vec![42.0, 28.5, 0.0]];
        let (strengths, errors) = most_likely(&points).expect("ratings");
        // At the maximum each player's expected points are those it has (Bradley and Terry, equation 9).
        for one in 0..3 {
            let wins = |other: usize| 1.0 / (1.0 + (strengths[other] - strengths[one]).exp());
            let games = |other: usize| points[one][other] + points[other][one];
            let expected: f64 =
                (0..3).filter(|other| *other != one).map(|other| games(other) * wins(other)).sum();
            close(expected, points[one].iter().sum());
        }
        assert!(strengths[0] == 0.0 && errors[0] == 0.0 && errors[1] > 0.0 && errors[2] > 0.0);
    }

    #[test]
    fn player_that_never_lost_has_no_rating() {
        assert_eq!(separated(&[vec![0.0, 0.0], vec![5.0, 0.0]]), Some((1, 0)));
        assert_eq!(separated(&[vec![0.0, 0.5], vec![5.0, 0.0]]), None);
        // Two that never met.
        assert!(separated(&[vec![0.0; 2], vec![0.0; 2]]).is_some());
    }
}
