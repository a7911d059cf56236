//! The processor backend: f32 (operands of linear layers, keys and values rounded to bf16 if asked), one thread, scratch
//! memory kept from one micro-batch to the next.
//!
//! Independent micro-batches run on threads with a backend each; nothing here synchronises.

mod attention;
mod elementwise;
mod products;
mod rotary;
mod score;
mod vector;

use super::angles::Angles;
use super::{Backend, Batch, Dense, Head, Heads, Rotated, Rows};
use gemm::{Onto, Precision, View};
use products::Products;

pub(crate) use elementwise::add_and_clear;
pub use score::held;

/// A processor core.
#[derive(Clone, Debug)]
pub struct Cpu {
    products: Products,
    attention: attention::Scratch,
    scorer: score::Scorer,
    angles: Angles,
    /// Where gradients of frozen vectors go.
    unwanted: Vec<f32>,
}

impl Cpu {
    /// A core that rotates by these angular frequencies, radians a position.
    pub fn new(inverse_frequencies: &[f32]) -> Cpu {
        Cpu {
            products: Products::default(),
            attention: attention::Scratch::default(),
            scorer: score::Scorer::default(),
            angles: Angles::new(inverse_frequencies),
            unwanted: Vec::new(),
        }
    }

    /// The same core, which rounds the operands of linear layers, keys and values.
    pub fn rounding(mut self, precision: Precision) -> Cpu {
        self.products.precision = precision;
        self
    }

    /// The width of heads that are rounded once they are rotated, and what follows them in a row as well: keys and
    /// values, as the sampler stores them. The gradient takes the rounding for the identity.
    fn rounded(&self, rotated: Rotated) -> Option<usize> {
        let heads = rotated.heads * rotated.width;
        (self.products.precision == Precision::BFloat16 && rotated.stride > heads).then_some(heads)
    }

    fn places<'a>(&'a self, batch: &'a Prepared, rows: Rows) -> rotary::Places<'a> {
        let nodes = match rows {
            Rows::All => None,
            Rows::Scored => Some(&batch.batch.scored[..]),
        };
        rotary::Places { angles: &self.angles, positions: &batch.batch.positions, nodes }
    }
}

/// A micro-batch and how attention walks it.
#[derive(Clone, Debug)]
pub struct Prepared {
    batch: Batch,
    all: attention::Plan,
    scored: attention::Plan,
}

impl Prepared {
    fn plan(&self, rows: Rows) -> &attention::Plan {
        match rows {
            Rows::All => &self.all,
            Rows::Scored => &self.scored,
        }
    }

    fn rows(&self, rows: Rows) -> usize {
        match rows {
            Rows::All => self.batch.tokens(),
            Rows::Scored => self.batch.scored.len(),
        }
    }
}

fn values(weights: &[f32], weight: Dense) -> View<'_> {
    View::new(&weights[weight.at..weight.at + weight.outputs * weight.inputs], weight.inputs)
}

/// Where the gradient of a vector goes: into `gradients`, or, where it is not wanted, somewhere that nobody reads. It
/// falls out of what is computed for the activations anyway.
fn wanted<'a>(
    gradients: Option<&'a mut Vec<f32>>,
    at: usize,
    width: usize,
    unwanted: &'a mut Vec<f32>,
) -> &'a mut [f32] {
    match gradients {
        Some(gradients) => &mut gradients[at..at + width],
        None => {
            unwanted.resize(unwanted.len().max(width), 0.0);
            &mut unwanted[..width]
        }
    }
}

fn norm_of(rotated: Rotated, weights: &[f32]) -> &[f32] {
    rotated.norm.map_or(&[], |at| &weights[at..at + rotated.width])
}

impl Backend for Cpu {
    type Buffer = Vec<f32>;
    type Batch = Prepared;

    fn buffer(&mut self) -> Vec<f32> {
        Vec::new()
    }

    fn reserve(&mut self, buffer: &mut Vec<f32>, length: usize) {
        if buffer.len() < length {
            buffer.resize(length, 0.0);
        }
    }

    fn prepare(&mut self, batch: Batch) -> Prepared {
        self.angles.cover(batch.positions.iter().max().map_or(0, |&last| last as usize + 1));
        let all = attention::Plan::new(&batch, (0..batch.tokens() as u32).collect());
        let scored = attention::Plan::new(&batch, batch.scored.clone());
        Prepared { batch, all, scored }
    }

    fn embed(&mut self, batch: &Prepared, weights: &Vec<f32>, table: Dense, out: &mut Vec<f32>) {
        for (&id, out) in batch.batch.ids.iter().zip(out.chunks_exact_mut(table.inputs)) {
            out.copy_from_slice(&weights[table.at + id as usize * table.inputs..][..table.inputs]);
        }
    }

    fn embed_backward(&mut self, batch: &Prepared, d_out: &Vec<f32>, gradients: &mut Vec<f32>, table: Dense) {
        score::add_to_table(&batch.batch.ids, table.inputs, d_out, &mut gradients[table.at..]);
    }

    fn rms_norm(
        &mut self,
        rows: usize,
        width: usize,
        x: &Vec<f32>,
        weights: &Vec<f32>,
        at: usize,
        epsilon: f32,
        out: &mut Vec<f32>,
    ) {
        let length = rows * width;
        elementwise::rms_norm(&x[..length], &weights[at..at + width], epsilon, &mut out[..length]);
    }

    fn rms_norm_backward(
        &mut self,
        rows: usize,
        width: usize,
        x: &Vec<f32>,
        weights: &Vec<f32>,
        at: usize,
        epsilon: f32,
        d_out: &Vec<f32>,
        d_x: &mut Vec<f32>,
        gradients: Option<&mut Vec<f32>>,
    ) {
        let length = rows * width;
        let weight = &weights[at..at + width];
        let d_weight = wanted(gradients, at, width, &mut self.unwanted);
        elementwise::rms_norm_backward(
            &x[..length],
            weight,
            epsilon,
            &d_out[..length],
            &mut d_x[..length],
            d_weight,
        );
    }

    fn linear(
        &mut self,
        rows: usize,
        x: &Vec<f32>,
        weights: &Vec<f32>,
        weight: Dense,
        residual: Option<&Vec<f32>>,
        out: &mut Vec<f32>,
    ) {
        let extent = [rows, weight.outputs, weight.inputs];
        let onto = residual.map_or(Onto::Zero, |residual| Onto::Other(residual));
        let (x, w) = (View::new(x, weight.inputs), values(weights, weight).transposed());
        self.products.linear(extent, x, w, onto, out, weight.outputs);
    }

    fn linear_add(
        &mut self,
        rows: usize,
        x: &Vec<f32>,
        weights: &Vec<f32>,
        weight: Dense,
        out: &mut Vec<f32>,
    ) {
        let extent = [rows, weight.outputs, weight.inputs];
        let (x, w) = (View::new(x, weight.inputs), values(weights, weight).transposed());
        self.products.linear(extent, x, w, Onto::Result, out, weight.outputs);
    }

    fn linear_backward_input(
        &mut self,
        rows: usize,
        d_out: &Vec<f32>,
        weights: &Vec<f32>,
        weight: Dense,
        add: bool,
        d_x: &mut Vec<f32>,
    ) {
        let extent = [rows, weight.inputs, weight.outputs];
        let onto = if add { Onto::Result } else { Onto::Zero };
        let (d_out, w) = (View::new(d_out, weight.outputs), values(weights, weight));
        self.products.linear(extent, d_out, w, onto, d_x, weight.inputs);
    }

    fn linear_backward_weight(
        &mut self,
        rows: usize,
        d_out: &Vec<f32>,
        x: &Vec<f32>,
        gradients: &mut Vec<f32>,
        weight: Dense,
    ) {
        let extent = [weight.outputs, weight.inputs, rows];
        let (d_out, x) = (View::new(d_out, weight.outputs).transposed(), View::new(x, weight.inputs));
        let gradient = &mut gradients[weight.at..];
        self.products.linear(extent, d_out, x, Onto::Result, gradient, weight.inputs);
    }

    fn rotate(
        &mut self,
        batch: &Prepared,
        rows: Rows,
        rotated: Rotated,
        weights: &Vec<f32>,
        projection: &mut Vec<f32>,
        out: &mut Vec<f32>,
    ) {
        if let Some(at) = rotated.bias {
            let length = batch.rows(rows) * rotated.stride;
            rotary::add_bias(&weights[at..at + rotated.stride], &mut projection[..length]);
        }
        if let Some(heads) = self.rounded(rotated) {
            let rows = projection[..batch.rows(rows) * rotated.stride].chunks_exact_mut(rotated.stride);
            rows.for_each(|row| elementwise::round(&mut row[heads..]));
        }
        self.rotate_again(batch, rows, rotated, weights, projection, out);
    }

    fn rotate_again(
        &mut self,
        batch: &Prepared,
        rows: Rows,
        rotated: Rotated,
        weights: &Vec<f32>,
        projection: &Vec<f32>,
        out: &mut Vec<f32>,
    ) {
        let projection = &projection[..batch.rows(rows) * rotated.stride];
        rotary::rotate(self.places(batch, rows), rotated, norm_of(rotated, weights), projection, out);
        if let Some(heads) = self.rounded(rotated) {
            elementwise::round(&mut out[..batch.rows(rows) * heads]);
        }
    }

    fn rotate_backward(
        &mut self,
        batch: &Prepared,
        rows: Rows,
        rotated: Rotated,
        weights: &Vec<f32>,
        projection: &Vec<f32>,
        d_out: &Vec<f32>,
        d_projection: &mut Vec<f32>,
        mut gradients: Option<&mut Vec<f32>>,
    ) {
        let length = batch.rows(rows) * rotated.stride;
        let norm = norm_of(rotated, weights);
        let mut unwanted = std::mem::take(&mut self.unwanted);
        let d_norm = match rotated.norm {
            Some(at) => wanted(gradients.as_deref_mut(), at, rotated.width, &mut unwanted),
            None => &mut [],
        };
        let places = self.places(batch, rows);
        let (projection, d_projection) = (&projection[..length], &mut d_projection[..length]);
        rotary::rotate_backward(places, rotated, norm, projection, d_out, d_projection, d_norm);
        self.unwanted = unwanted;
        if let (Some(at), Some(gradients)) = (rotated.bias, gradients) {
            elementwise::add_column_sums(d_projection, &mut gradients[at..at + rotated.stride]);
        }
    }

    fn attention(
        &mut self,
        batch: &Prepared,
        rows: Rows,
        heads: Heads,
        queries: &Vec<f32>,
        keys: &Vec<f32>,
        projection: &Vec<f32>,
        out: &mut Vec<f32>,
        normalizers: &mut Vec<f32>,
    ) {
        attention::forward(
            &mut self.attention,
            &mut self.products,
            &batch.batch,
            batch.plan(rows),
            heads,
            queries,
            keys,
            projection,
            out,
            normalizers,
        );
    }

    fn attention_backward(
        &mut self,
        batch: &Prepared,
        rows: Rows,
        heads: Heads,
        queries: &Vec<f32>,
        keys: &Vec<f32>,
        projection: &Vec<f32>,
        out: &Vec<f32>,
        normalizers: &Vec<f32>,
        d_out: &Vec<f32>,
        d_queries: &mut Vec<f32>,
        d_keys: &mut Vec<f32>,
        d_projection: &mut Vec<f32>,
    ) {
        let tokens = batch.batch.tokens();
        attention::backward(
            &mut self.attention,
            &mut self.products,
            &batch.batch,
            batch.plan(rows),
            heads,
            queries,
            keys,
            projection,
            out,
            normalizers,
            d_out,
            d_queries,
            &mut d_keys[..tokens * heads.keys * heads.width],
            &mut d_projection[..tokens * 2 * heads.keys * heads.width],
        );
    }

    fn swiglu(&mut self, rows: usize, width: usize, gate_up: &Vec<f32>, out: &mut Vec<f32>) {
        elementwise::swiglu(width, &gate_up[..2 * rows * width], &mut out[..rows * width]);
    }

    fn swiglu_backward(
        &mut self,
        rows: usize,
        width: usize,
        gate_up: &mut Vec<f32>,
        d_out: &Vec<f32>,
        out: &mut Vec<f32>,
    ) {
        let length = rows * width;
        elementwise::swiglu_backward(width, &mut gate_up[..2 * length], &d_out[..length], &mut out[..length]);
    }

    fn gather(&mut self, batch: &Prepared, width: usize, x: &Vec<f32>, out: &mut Vec<f32>) {
        for (&node, out) in batch.batch.scored.iter().zip(out.chunks_exact_mut(width)) {
            out.copy_from_slice(&x[node as usize * width..][..width]);
        }
    }

    fn scatter_add(&mut self, batch: &Prepared, width: usize, rows: &Vec<f32>, x: &mut Vec<f32>) {
        score::add_to_table(&batch.batch.scored, width, rows, x);
    }

    fn clear(&mut self, length: usize, buffer: &mut Vec<f32>) {
        buffer[..length].fill(0.0);
    }

    fn score(
        &mut self,
        batch: &Prepared,
        hidden: &Vec<f32>,
        weights: &Vec<f32>,
        head: Head,
        logprobs: &mut [f32],
        entropies: &mut [f32],
    ) {
        let (scorer, products) = (&mut self.scorer, &mut self.products);
        scorer.score(products, &batch.batch, hidden, weights, head, logprobs, entropies);
    }

    fn score_backward(
        &mut self,
        batch: &Prepared,
        hidden: &Vec<f32>,
        weights: &Vec<f32>,
        head: Head,
        d_logprobs: &[f32],
        d_hidden: &mut Vec<f32>,
        gradients: Option<&mut Vec<f32>>,
    ) {
        let (scorer, products) = (&mut self.scorer, &mut self.products);
        scorer.score_backward(products, &batch.batch, hidden, weights, head, d_logprobs, d_hidden, gradients);
    }
}
