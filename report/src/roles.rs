//! `report roles`: what a credit rule does to each agent, from the record alone.
//!
//! It reads a stream after `advantage` and shows by agent where learning fails: groups with nothing to learn from, an agent
//! that takes all of the advantage, advantages that point nowhere, candidates of a state that all earn the same. With
//! `--against` it compares two rules on one record. Left out: what needs the policy (entropy, clipping, gradients by
//! agent), and `report`'s page.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use record::failure::{Failure, Result};
use record::line::{self, Episode};
use record::read::{Kind, Reader};
use record::sample::{Field, Sample};
use record::text::Text;
use serde_json::{Map, Value, json};

use crate::arguments::{ResultFormat, Roles};

/// Share of the samples whose advantages are the largest.
const LARGEST: f64 = 0.01;

/// One sample, as far as it counts.
#[derive(Debug)]
struct Row {
    id: String,
    group: String,
    turn: u32,
    tokens: f64,
    cut: bool,
    reward: Option<f64>,
    advantage: Option<f64>,
    /// Its episode, if the sample is on the path that was played.
    played: Option<(String, Option<u64>)>,
    /// Whether members of its group share a state.
    is_tree: bool,
}

/// The samples of a stream by agent, and which episodes succeeded.
#[derive(Debug, Default)]
struct Played {
    agents: BTreeMap<String, Vec<Row>>,
    success: HashMap<(String, Option<u64>), bool>,
}

/// Reads the streams and prints what each agent's samples are worth.
///
/// # Errors
/// 65: a bad line, or no samples with groups; 74: I/O.
pub fn run(arguments: &Roles) -> Result<()> {
    let played = match &arguments.file {
        Some(path) => of_file(path)?,
        None => read(Reader::stdin())?,
    };
    if played.agents.is_empty() {
        return Err(
            Failure::data("the stream has no samples").hint("report roles reads what advantage writes")
        );
    }
    let against = arguments.against.as_deref().map(of_file).transpose()?;
    let mass: f64 = played.agents.values().flatten().map(mass).sum();
    let mut tables = Vec::new();
    for (agent, rows) in &played.agents {
        let mut values = numbers(rows, &played.success, mass);
        if let Some(against) = &against {
            let other = against.agents.get(agent).map_or(&[][..], Vec::as_slice);
            values.insert("cosine".to_owned(), json!(cosine(rows, other)));
        }
        tables.push((agent, values));
    }
    let text = match arguments.format {
        ResultFormat::Table => table(&tables),
        _ => tables.iter().map(|(agent, values)| json_line(agent, values)).collect(),
    };
    record::write::stdout(text.as_bytes())
}

fn of_file(path: &Path) -> Result<Played> {
    let input = record::file::open(path).map_err(|error| Failure::named_file(path, &error))?;
    read(Reader::new(&path.display().to_string(), input))
}

fn read<R: std::io::Read>(mut reader: Reader<R>) -> Result<Played> {
    let mut played = Played::default();
    while let Some(line) = reader.next()? {
        match line.kind {
            Kind::Sample => {
                let sample = Sample::parse(&line)?;
                sample.require(&line, &[Field::Id, Field::Agent]).and_then(|()| {
                    let grouped = sample.require(&line, &[Field::Group]);
                    grouped.map_err(|failure| failure.hint("report roles reads what advantage writes"))
                })?;
                let text = |field: &Option<Text>| field.as_deref().unwrap_or_default().to_owned();
                let parallel = sample.is_parallel();
                let episode = (text(&sample.episode), sample.branch.map(u64::from).filter(|_| parallel));
                let row = Row {
                    id: text(&sample.id),
                    group: text(&sample.group),
                    turn: sample.turn.unwrap_or_default(),
                    tokens: sample.completion_ids.as_ref().map_or(0, Vec::len) as f64,
                    cut: sample.finish_reason.as_deref() == Some("length"),
                    reward: sample.reward.flatten(),
                    advantage: sample.advantage,
                    played: (parallel || sample.selected == Some(true)).then_some(episode),
                    is_tree: !parallel,
                };
                played.agents.entry(text(&sample.agent)).or_default().push(row);
            }
            Kind::Episode => {
                let episode: Episode = line::parse(&line)?;
                let branch = episode.extra.get("branch").and_then(Value::as_u64);
                played.success.insert((episode.episode, branch), episode.success);
            }
            _ => {}
        }
    }
    Ok(played)
}

/// The weight of a sample in the update: |advantage| times tokens.
fn mass(row: &Row) -> f64 {
    row.advantage.unwrap_or_default().abs() * row.tokens
}

fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// Sum of squares about the mean.
fn squares(values: &[f64]) -> f64 {
    let center = mean(values).unwrap_or_default();
    values.iter().map(|value| (value - center).powi(2)).sum()
}

/// Pearson's coefficient; none where one of the two does not vary.
fn correlation(pairs: &[(f64, f64)]) -> Option<f64> {
    let (left, right): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
    let (x, y) = (mean(&left)?, mean(&right)?);
    let together: f64 = pairs.iter().map(|(a, b)| (a - x) * (b - y)).sum();
    let scale = (squares(&left) * squares(&right)).sqrt();
    (scale > 0.0).then_some(together / scale)
}

/// The cosine of the advantages that two streams give the samples that both have.
fn cosine(rows: &[Row], other: &[Row]) -> Option<f64> {
    let of: HashMap<&str, f64> =
        other.iter().filter_map(|row| Some((row.id.as_str(), row.advantage?))).collect();
    let both = rows.iter().filter_map(|row| Some((row.advantage?, *of.get(row.id.as_str())?)));
    let (dot, own, their) =
        both.fold((0.0, 0.0, 0.0), |(dot, own, their), (a, b)| (dot + a * b, own + a * a, their + b * b));
    (own > 0.0 && their > 0.0).then(|| dot / (own * their).sqrt())
}

/// The samples by group, in order.
fn groups(rows: &[Row]) -> BTreeMap<&str, Vec<&Row>> {
    let mut groups: BTreeMap<&str, Vec<&Row>> = BTreeMap::new();
    rows.iter().for_each(|row| groups.entry(row.group.as_str()).or_default().push(row));
    groups
}

fn numbers(
    rows: &[Row],
    success: &HashMap<(String, Option<u64>), bool>,
    mass_of_all: f64,
) -> Map<String, Value> {
    let count = rows.len() as f64;
    let groups = groups(rows);
    let is_flat = |rows: &Vec<&Row>| rows.windows(2).all(|pair| pair[0].reward == pair[1].reward);
    let is_still = |rows: &Vec<&Row>| rows.iter().all(|row| row.advantage.unwrap_or_default() == 0.0);
    let share = |test: &dyn Fn(&Vec<&Row>) -> bool| {
        groups.values().filter(|rows| test(rows)).count() as f64 / groups.len() as f64
    };
    let mut by_turn: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
    for rows in groups.values() {
        let (flat, all) = by_turn.entry(rows[0].turn).or_default();
        (*flat, *all) = (*flat + u64::from(is_still(rows)), *all + 1);
    }
    let by_turn: Vec<f64> = by_turn.values().map(|(flat, all)| *flat as f64 / *all as f64).collect();
    let rewards: Vec<f64> = rows.iter().filter_map(|row| row.reward).collect();
    let advantages: Vec<f64> = rows.iter().filter_map(|row| row.advantage).collect();
    let mut sizes: Vec<f64> = advantages.iter().map(|advantage| advantage.abs()).collect();
    sizes.sort_by(|a, b| b.total_cmp(a));
    sizes.truncate((count * LARGEST).ceil() as usize);
    let pairs: Vec<(f64, f64)> = rows
        .iter()
        .filter_map(|row| {
            let solved = *success.get(row.played.as_ref()?)?;
            Some((row.advantage?, f64::from(u8::from(solved))))
        })
        .collect();
    // How much of what rewards vary by is the candidate, and not the state that it is in.
    let within: f64 = groups
        .values()
        .map(|rows| squares(&rows.iter().filter_map(|row| row.reward).collect::<Vec<f64>>()))
        .sum();
    let total = squares(&rewards);
    let within = (rows.iter().all(|row| row.is_tree) && total > 0.0).then_some(within / total);
    let spread =
        |values: &[f64]| (values.len() > 1).then(|| (squares(values) / (values.len() - 1) as f64).sqrt());
    let own: f64 = rows.iter().map(mass).sum();
    let values = [
        ("samples", json!(rows.len())),
        ("groups", json!(groups.len())),
        ("flat_by_reward", json!(share(&is_flat))),
        ("flat", json!(share(&is_still))),
        ("flat_by_turn", json!(by_turn)),
        ("advantage_mass", json!((mass_of_all > 0.0).then(|| own / mass_of_all))),
        ("advantage_mean", json!(mean(&advantages))),
        ("advantage_std", json!(spread(&advantages))),
        ("advantage_largest", json!(mean(&sizes))),
        ("advantage_success", json!(correlation(&pairs))),
        ("reward", json!(mean(&rewards))),
        ("variance_within_state", json!(within)),
        ("completion_tokens", json!(mean(&rows.iter().map(|row| row.tokens).collect::<Vec<f64>>()))),
        ("cut", json!(rows.iter().filter(|row| row.cut).count() as f64 / count)),
    ];
    values.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

fn json_line(agent: &str, values: &Map<String, Value>) -> String {
    let mut line = Map::from_iter([("agent".to_owned(), json!(agent))]);
    line.extend(values.clone());
    format!("{}\n", Value::Object(line))
}

/// A metric a line, an agent a column.
fn table(tables: &[(&String, Map<String, Value>)]) -> String {
    let cell = |value: &Value| match value {
        Value::Null => "-".to_owned(),
        Value::Array(values) => {
            let values = values.iter().filter_map(Value::as_f64).map(|value| format!("{value:.2}"));
            values.collect::<Vec<_>>().join(" ")
        }
        value if value.is_u64() => value.to_string(),
        value => value.as_f64().map_or_else(String::new, |value| format!("{value:.3}")),
    };
    let names: Vec<&String> = tables.first().map_or(Vec::new(), |(_, values)| values.keys().collect());
    let mut rows = vec![vec![String::new()]];
    rows[0].extend(tables.iter().map(|(agent, _)| (*agent).clone()));
    for name in names {
        let cells = tables.iter().map(|(_, values)| cell(&values[name]));
        rows.push([name.clone()].into_iter().chain(cells).collect());
    }
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..rows[0].len()).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| match column {
            0 => format!("{cell:<width$}"),
            _ => format!("  {cell:>width$}"),
        });
        text += cells.collect::<String>().trim_end();
        text.push('\n');
    }
    text
}
