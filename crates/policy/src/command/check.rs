//! `policy check`: finds whatever is wrong with a policy before it runs.

use policy::config::{Config, Variant};
use policy::decoder::Tensor;
use policy::directory::Policy;
use policy::rope::RopeScaling;
use policy::tokenizer::Tokenizer;
use policy::weights::Weights;
use record::failure::{Failure, Result};
use record::sample::Message;

use crate::arguments::Check;

pub fn run(arguments: &Check) -> Result<()> {
    let policy = Policy::open(&arguments.directory)?;
    let files = policy.files.display();
    let (config, weights) = (&policy.config, policy.weights()?);
    policy.verify()?;
    let adapter = policy.adapter()?;

    let count = check_finite(&weights, &config.tensors())?;
    let mut lines = vec![format!("version     {}", policy.version), format!("files       {files}")];
    if let (Some((adapter, weights)), Some(base)) = (&adapter, &policy.base) {
        let count = check_finite(weights, &adapter.tensors(config))?;
        let targets: Vec<&str> = adapter.targets.iter().map(|target| target.name()).collect();
        let (rank, alpha, targets, base) =
            (adapter.rank, adapter.alpha, targets.join("+"), base.files.display());
        lines.push(format!("adapter     rank {rank}, alpha {alpha}, {targets}, {count} weights over {base}"));
    }

    let tokenizer = Tokenizer::load(policy.model())?;
    let size = config.vocab_size;
    if let Some(stop) = tokenizer.stop_ids().iter().find(|&&stop| stop as usize >= size) {
        return Err(Failure::data(format!("{files}: stop token {stop} is outside the vocabulary of {size}"))
            .hint("eos_token_id in generation_config.json and config.json is of another model"));
    }
    if tokenizer.vocabulary_size() > size {
        let largest = tokenizer.vocabulary_size() - 1;
        return Err(Failure::data(format!(
            "{files}: token {largest} of tokenizer.json is outside the vocabulary of {size}"
        ))
        .hint("the tokenizer and the weights are of different models"));
    }
    let hello = Message { role: "user".to_owned(), content: "hello".to_owned() };
    let prompt = tokenizer.chat(&[hello])?;

    let scaling = match &config.rope_scaling {
        RopeScaling::None => String::new(),
        RopeScaling::LongRope { attention_factor, .. } => {
            format!(" LongRope {{ attention_factor: {attention_factor} }}")
        }
        other => format!(" {other:?}"),
    };
    let nope = match config.rope_layers.iter().filter(|&&rope| !rope).count() {
        0 => String::new(),
        layers => format!(", {layers} layers without"),
    };
    let Variant { windows, local_rope_theta, .. } = &config.variant;
    let limited: Vec<usize> = windows.iter().flatten().copied().collect();
    let window = match (limited.first(), limited.len() == config.num_layers) {
        (None, _) => String::new(),
        (Some(window), true) => format!(", a window of {window}"),
        (Some(window), false) => format!(", a window of {window} in {} layers", limited.len()),
    };
    let local = local_rope_theta.map_or_else(String::new, |theta| format!(", {theta} there"));
    let Config { family, dtype, num_layers, hidden_size, intermediate_size, .. } = config;
    let Config { num_heads, num_kv_heads, head_dim, max_positions, rope_theta, .. } = config;
    let head = if config.tie_word_embeddings { "tied" } else { "separate" };
    lines.extend([
        format!("family      {family}, {count} weights, {dtype:?}"),
        format!(
            "geometry    {num_layers} layers, width {hidden_size}, feed-forward {intermediate_size}, {num_heads} query and \
             {num_kv_heads} key heads of {head_dim}"
        ),
        format!("positions   {max_positions}{window}, rope {rope_theta}{scaling}{local}{nope}"),
        format!("vocabulary  {size}, {head} head, stop tokens {:?}", tokenizer.stop_ids()),
        format!("chat        \"hello\" is {} tokens", prompt.len()),
    ]);
    super::print(&lines)
}

/// Number of weights, all of them finite.
fn check_finite(weights: &Weights, tensors: &[Tensor]) -> Result<usize> {
    for Tensor { name, .. } in tensors {
        weights.check_finite(name)?;
    }
    Ok(tensors.iter().map(Tensor::count).sum())
}
