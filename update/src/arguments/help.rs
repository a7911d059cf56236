//! The text of `update --help` and `--version` around the flags: examples, formulas, exit codes, the build.

use std::sync::LazyLock;

use device::cuda;
use gemm::Isa;
use record::stage;

pub const EXAMPLES: &str = "\
Examples:
  One on-policy step; the new version goes into the policy directory
    … | group | advantage | update --policy run/policies/shared --lr 1e-3

  One policy per role, in one process; each trains on its agent's samples
    … | advantage | update --policy tool=run/tool --policy planner=run/planner --lr 1e-3

  A supervised warm-up on demonstrations
    envs demo plan-path --count 9600 | policy encode --policy run/tool |
      update --policy run/tool --objective nll --minibatches 1200 --optimizer muon --lr 0.03 \\
        --lr-other 4e-3 --schedule cosine --lr-warmup 50

  Do rollout and update agree on the log-probabilities? Publishes nothing
    update --policy run/tool --check < samples.jsonl

  What would it train, with how much memory?
    update --policy run/tool --dry-run < samples.jsonl

  Four processes share the work; the same bytes as one process with --parts 8
    mpirun -n 4 update-mpi --policy run/tool --parts 8 < samples.jsonl

  Two policies at the same time, two processes each
    mpirun -n 4 update-mpi --policy tool=run/tool --policy planner=run/planner --side-by-side \\
      --parts 8 < samples.jsonl

  Does this geometry fit the GPU? A directory with a config.json is enough
    update --policy Qwen3-8B --dry-run --device cuda --max-tokens-per-batch 32768 < /dev/null
";

pub const FORMULAS: &str = "\
The loss of one optimizer batch. N is the number of samples, n_i the number of completion tokens
of sample i, l_ij the loss of a token, A the advantage.
  --aggregate token      sum_ij l_ij / sum_i n_i
  --aggregate sequence   (1/N) sum_i (1/n_i) sum_j l_ij
  --aggregate constant=L sum_ij l_ij / (N * L)
  --objective clip       l = -min(r*A, clip(r, 1-low, 1+high)*A) + kl*k3
                         r = exp(new - recorded)
                         k3 = exp(d) - d - 1, d = reference - new (arXiv 2402.03300)
  --importance C         l = -w*min(...), r = exp(new - start), w = min(exp(start - recorded), C);
                         start is the trainer's log-probability before the first step (Yao et al.
                         2025, \"Your efficient RL framework secretly brings you off-policy RL
                         training\")
  --ratio sequence       r = exp(mean_j(new - recorded)) for the whole completion (GSPO, arXiv
                         2507.18071, with clip ranges 3e-4 and 4e-4 and --aggregate sequence;
                         --aggregate token would give long answers more weight)
  --objective cispo      l = -min(r, 1+high)*A*new, the ratio a constant (arXiv 2506.13585);
                         the value of this loss has no meaning
  --importance C,level=sequence  w = exp(sum_j(start - recorded)) for the whole completion
  --importance C,mask,floor=F    w = 0 above C and below F
  --entropy C            l = ... - C*H, H the entropy of the distribution that the token was drawn
                         from, at its temperature
  --mask-negative-above D        l = 0 if A < 0 and mean_j(recorded - new) > D (DeepSeek-V3.2)
  --objective nll        l = -w*new, w the sample's advantage if it has one, else 1
In the first optimizer step after a rollout r is 1, so clip, GSPO and CISPO have the same gradient
with the same --aggregate; later steps differ.
Samples of flat groups (all advantages 0, no --kl) are not computed but count in N and sum_i n_i.
A batch with only flat groups takes no optimizer step; the next version has the same weights.

The optimizer's state (moments, and the number of steps, which --lr-warmup counts) is saved in the
policy directory and continues from call to call. It is reset, with a message, when --optimizer or
--objective changes.

Exit codes: 0 done, 1 the work or --check failed, 2 usage, 65 bad record or incomplete stream
(nothing is published), 69 device unavailable, 74 I/O, 130 and 143 interrupted (nothing is
published).";

/// The build, its instruction set on this machine, and the CUDA installation.
pub static VERSION: LazyLock<String> = LazyLock::new(|| {
    let isa = Isa::best();
    // Looking for a GPU takes a while, so only `--version` does it.
    let asked = std::env::args().any(|argument| argument == "--version" || argument == "-V");
    let cuda = if asked { cuda::installation() } else { String::new() };
    format!("{} (cpu: {isa}; cuda: {cuda})", stage::build())
});
