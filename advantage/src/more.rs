//! Optional data of a sample, kept in memory only if a flag needs it.

use record::failure::Result;
use record::read::Line;
use record::sample::{Field, Sample};
use record::text::Text;

use crate::arguments::Credit;
use crate::components::{self, Component};
use crate::estimator::Estimator;
use crate::stage::{Advantages, Member};
use crate::whiten::Whiten;

/// Data of a sample that only some flags need.
#[derive(Debug, Default)]
pub struct More {
    /// Completion tokens.
    pub tokens: usize,
    /// For `gdpo`.
    pub components: Vec<f64>,
    /// For `--gate`.
    pub gate: f64,
    /// For `--whiten`: the policy; empty if the record does not name it.
    pub policy: String,
    /// For `rae`: `ENV/AGENT`.
    pub role: String,
    /// For `--credit gigpo`.
    pub anchor: String,
}

impl Advantages {
    /// Reads the optional data of a sample; `None` if no flag needs any.
    pub(crate) fn more(&mut self, sample: &Sample, line: &Line) -> Result<Option<Box<More>>> {
        let estimator = self.method.estimator;
        let text = |field: &Option<Text>| field.as_deref().unwrap_or_default().to_owned();
        let mut more = More::default();
        let mut any = false;
        if estimator == Estimator::Opo || self.arguments.whiten() == Whiten::Tokens {
            sample.require(line, &[Field::CompletionIds])?;
            (any, more.tokens) = (true, sample.completion_ids.as_ref().map_or(0, Vec::len));
        }
        if self.whitening.is_some() {
            (any, more.policy) = (true, text(&sample.policy));
        }
        if estimator == Estimator::Gdpo {
            let of = |component: &Component| components::of(sample, line, &component.name);
            more.components = self.arguments.components.iter().map(of).collect::<Result<_>>()?;
            any = true;
        }
        if let Some(baselines) = &mut self.baselines {
            sample.require(line, &[Field::Env, Field::Agent])?;
            baselines.begin(sample.step.unwrap_or_default())?;
            (any, more.role) = (true, format!("{}/{}", text(&sample.env), text(&sample.agent)));
        }
        if self.arguments.credit == Credit::Gigpo {
            sample.require(line, &[Field::Anchor]).map_err(|failure| {
                failure.hint("put group --anchor prompt before: … | group --by agent --anchor prompt")
            })?;
            (any, more.anchor) = (true, text(&sample.anchor));
        }
        if let Some(gate) = &mut self.gate {
            (any, more.gate) = (true, gate.take(sample, line)?);
        }
        Ok(any.then(|| Box::new(more)))
    }
}

/// The optional data of a member; all defaults if no flag needs any.
pub fn more(member: &Member) -> &More {
    static NOTHING: More = More {
        tokens: 0,
        components: Vec::new(),
        gate: 0.0,
        policy: String::new(),
        role: String::new(),
        anchor: String::new(),
    };
    member.data.more.as_deref().unwrap_or(&NOTHING)
}
