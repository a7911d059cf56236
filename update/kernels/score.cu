// The loss rows of a chunk of nodes: log-probabilities and entropies from f32 logits, and the gradient of the logits.
//
// Logits stay f32: in 16 bits a probability ratio would be off by a few per cent, against a clip range of a few tens. One block a node; a node may carry several rows (a branching point predicts each of its branches).

#include "common.cuh"

#define LOWEST (-3.4e38f)

// logits [nodes, stride], of which `vocabulary` count; `scale` is 1 / temperature. Rows starts[n] .. starts[n
// + 1] are node n's. One pass over the logits: each thread keeps a maximum and rescales (arXiv 1805.02867).
extern "C" __global__ void score_rows(float* logprobs, float* entropies, float* lse, const float* logits, const int* starts,
                       const int* targets, int vocabulary, int stride, float scale) {
    SHARED_ARRAY(float, scratch, 33);
    const float* row = logits + (u64)blockIdx.x * stride;
    float top = LOWEST, sum = 0.f, moment = 0.f;
    for (int i = threadIdx.x; i < vocabulary; i += blockDim.x) {
        float logit = row[i] * scale;
        if (logit > top) {
            float shrink = expf(top - logit);
            sum *= shrink;
            moment *= shrink;
            top = logit;
        }
        float p = expf(logit - top);
        sum += p;
        moment += p * logit;
    }
    float largest = block_max(top, scratch);
    float shrink = expf(top - largest);
    sum = block_sum(sum * shrink, scratch);
    moment = block_sum(moment * shrink, scratch);
    float row_lse = largest + logf(sum), entropy = row_lse - moment / sum;
    if (threadIdx.x == 0) lse[blockIdx.x] = row_lse;
    int first = starts[blockIdx.x], last = starts[blockIdx.x + 1];
    for (int r = first + threadIdx.x; r < last; r += blockDim.x) {
        logprobs[r] = row[targets[r]] * scale - row_lse;
        entropies[r] = entropy;
    }
}

// d_logits = scale * (sum over the node's rows of d_logprob * (one at the target - probability)), rounded [nodes, stride], and with
// an entropy term scale * spread * probability * (log-probability + entropy); spreads holds both for each node. Zeros beyond the vocabulary. The entry at a target is by far the largest of its row, and so is its rounding error: that is
// written to residues, one a row, for score_targets_backward.
extern "C" __global__ void score_rows_backward(scalar_t* d_logits, float* residues, const float* logits, const float* lse, const float* d_logprobs,
                                const int* starts, const int* targets, const float* spreads, int has_spreads, int vocabulary,
                                int stride, float scale) {
    const float* row = logits + (u64)blockIdx.x * stride;
    scalar_t* to = d_logits + (u64)blockIdx.x * stride;
    float row_lse = lse[blockIdx.x], weight = 0.f;
    int first = starts[blockIdx.x], last = starts[blockIdx.x + 1];
    for (int r = first; r < last; r++) weight += d_logprobs[r];
    weight *= scale;
    // Without an entropy term 0 * (…) - weight is -weight, to the bit.
    float spread = has_spreads ? scale * spreads[2 * blockIdx.x] : 0.f, entropy = has_spreads ? spreads[2 * blockIdx.x + 1] : 0.f;
    for (int i = threadIdx.x; i < stride; i += blockDim.x) {
        float logprob = i < vocabulary ? row[i] * scale - row_lse : 0.f;
        to[i] = to_scalar(i < vocabulary ? expf(logprob) * (spread * (logprob + entropy) - weight) : 0.f);
    }
    __syncthreads();
    // Targets are written again, in f32 from the start: once for the rows that have the same one.
    for (int r = first + threadIdx.x; r < last; r += blockDim.x) {
        int target = targets[r];
        float sum = 0.f;
        bool earlier = false;
        for (int other = first; other < last; other++) {
            if (targets[other] != target) continue;
            if (other < r) earlier = true;
            sum += d_logprobs[other];
        }
        float logprob = row[target] * scale - row_lse;
        float d_logit = scale * sum + expf(logprob) * (spread * (logprob + entropy) - weight);
        scalar_t rounded = to_scalar(d_logit);
        residues[r] = earlier ? 0.f : d_logit - to_float(rounded);
        if (!earlier) to[target] = rounded;
    }
}

// d_hidden[n] += residues[r] * weight[targets[r]] over node n's rows r; d_hidden [nodes, width], weight [vocabulary, width].
// One block a node.
extern "C" __global__ void score_targets_backward(float* d_hidden, const scalar_t* weight, const float* residues,
                                                  const int* starts, const int* targets, int width) {
    float* to = d_hidden + (u64)blockIdx.x * width;
    int first = starts[blockIdx.x], last = starts[blockIdx.x + 1];
    for (int i = threadIdx.x * 2; i < width; i += blockDim.x * 2) {
        float2 sum = load2(to + i);
        for (int r = first; r < last; r++) {
            float2 w = load2(weight + (u64)targets[r] * width + i);
            sum.x += residues[r] * w.x;
            sum.y += residues[r] * w.y;
        }
        store2(to + i, sum.x, sum.y);
    }
}
