// From logits to a token and its log-probability: the twin of engine/cpu/sampler.rs, bit for bit.
//
// The two agree because every f32 operation is spelled out. The exponential is one polynomial with the same
// fused steps. Sums over 64 logits fold in one order; 64 of these sums are added in f64 in order of the ids,
// relative to the largest logit of their 4096; then the sums of the 4096 are rescaled to the largest logit of
// all and added. Truncation computes with integers, where order does not matter. No thread walks the
// vocabulary: of 151,936 tokens it adds 64 sums, then 38, and sampling descends the same three levels. On a
// GPU only log() in f64, before it is rounded to f32, is not defined to the last bit.
//
// Two kernels: sum_logits reads the logits, with a block for each 4096 of a token's, and sample_rows, with a block a token, has only
// what it left to look at, unless there is something to truncate.
#include "device.cuh"

#define BLOCK_LOGITS 64
// Blocks of logits whose sums are added up together, and such chunks at most.
#define CHUNK_BLOCKS 64
#define MOST_CHUNKS 384
#define NO_TOKEN 0xffffffffu

// e^x as crates/functional/src/vector.rs has it: 0 below -87, for arguments up to 88.
__device__ __forceinline__ float exponential(float argument) {
  float x = argument < -87.0f ? -87.0f : argument;
  // Rounds to the nearest whole number and leaves it in the low bits.
  float shifted = __fmaf_rn(x, 1.44269504088896340736f, 12582912.0f);
  float whole = __fsub_rn(shifted, 12582912.0f);
  float rest = __fmaf_rn(whole, -0.6933594f, x);
  rest = __fmaf_rn(whole, 2.1219444e-4f, rest);
  float sum = 1.9875691e-4f;
  sum = __fmaf_rn(sum, rest, 1.3981999e-3f);
  sum = __fmaf_rn(sum, rest, 8.333452e-3f);
  sum = __fmaf_rn(sum, rest, 4.1665796e-2f);
  sum = __fmaf_rn(sum, rest, 1.6666665e-1f);
  sum = __fmaf_rn(sum, rest, 0.5f);
  float value = __fadd_rn(__fmaf_rn(__fmul_rn(rest, rest), sum, rest), 1.0f);
  float power = __uint_as_float((__float_as_uint(shifted) + 127u) << 23);
  return argument < -87.0f ? 0.0f : __fmul_rn(value, power);
}

struct Row {
  const float* logits;
  float largest, scale;
  int size;
};
__device__ __forceinline__ float weight_beside(const Row& row, float logit, float largest) {
  return exponential(__fmul_rn(__fsub_rn(logit, largest), row.scale));
}
__device__ __forceinline__ float weight(const Row& row, int id) { return weight_beside(row, row.logits[id], row.largest); }
// A weight as a whole number of 2^-40: sums of them are exact.
__device__ __forceinline__ u64 whole_weight(const Row& row, int id) {
  return (u64)__fmul_rn(weight(row, id), 1099511627776.0f);
}
// Numbers in the order of the logits, both zeros being one.
__device__ __forceinline__ u32 rank(float logit) {
  u32 bits = __float_as_uint(__fadd_rn(logit, 0.0f));
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// The words of record/philox.rs: Philox4x32-10 (Salmon et al., SC 2011), the first word of a position.
__device__ __forceinline__ u32 random_word(const u32* stream, u64 position) {
  u32 c0 = (u32)position, c1 = (u32)(position >> 32), c2 = stream[2], c3 = stream[3], k0 = stream[0], k1 = stream[1];
  for (int round = 0; round < 10; round++) {
    u64 first = (u64)0xD2511F53u * c0, second = (u64)0xCD9E8D57u * c2;
    c0 = (u32)(second >> 32) ^ c1 ^ k0;
    c1 = (u32)second;
    c2 = (u32)(first >> 32) ^ c3 ^ k1;
    c3 = (u32)first;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c0;
}

// What truncation leaves: every token of a higher rank, and the `ties` lowest ids of this rank. All of it: {0, 0}.
struct Cut {
  u32 rank;
  u32 ties;
};
struct Search {
  u64 bins[256];
  u64 wanted, above, each;
  u32 prefix;
};

__device__ __forceinline__ bool begins(u32 rank, u32 prefix, int shift) {
  return shift == 24 || rank >> (shift + 8) == prefix >> (shift + 8);
}

// Weight of each token of a rank, in every thread: equal logits weigh the same.
__device__ __forceinline__ u64 each_of(const Row& row, u32 wanted, Search& search) {
  for (int id = threadIdx.x; id < row.size; id += blockDim.x)
    if (rank(row.logits[id]) == wanted) search.each = whole_weight(row, id);
  __syncthreads();
  u64 each = search.each;
  __syncthreads();
  return each;
}

// The shortest beginning of the tokens, likeliest first and lower ids first among equals, that weighs at least
// `wanted`: a token weighs 1 where `counting`, else its whole weight. Only what `inside` leaves takes part. The rank at
// which it ends is found a digit at a time.
__device__ __forceinline__ Cut shortest(const Row& row, u64 wanted, bool counting, Cut inside, Search& search) {
  u64 edge = 0;
  if (inside.ties) edge = (u64)inside.ties * each_of(row, inside.rank, search);
  if (threadIdx.x == 0) search.wanted = wanted, search.above = 0, search.prefix = 0;
  for (int shift = 24; shift >= 0; shift -= 8) {
    for (int bin = threadIdx.x; bin < 256; bin += blockDim.x) search.bins[bin] = 0;
    __syncthreads();
    u32 prefix = search.prefix;
    u64 held = 0;
    int bin = 0;
    for (int id = threadIdx.x; id < row.size; id += blockDim.x) {
      u32 own = rank(row.logits[id]);
      if (own <= inside.rank || !begins(own, prefix, shift)) continue;
      int own_bin = own >> shift & 255;
      if (own_bin != bin) {
        if (held) atomicAdd(&search.bins[bin], held);
        bin = own_bin, held = 0;
      }
      held += counting ? 1 : whole_weight(row, id);
    }
    if (held) atomicAdd(&search.bins[bin], held);
    __syncthreads();
    if (threadIdx.x == 0) {
      if (edge && begins(inside.rank, prefix, shift)) search.bins[inside.rank >> shift & 255] += edge;
      int chosen = 255;
      for (; chosen > 0 && search.above + search.bins[chosen] < search.wanted; chosen--) search.above += search.bins[chosen];
      search.prefix |= (u32)chosen << shift;
    }
    __syncthreads();
  }
  u32 last = search.prefix;
  u64 each = counting ? 1 : each_of(row, last, search), missing = search.wanted - search.above;
  __syncthreads();
  return {last, (u32)((missing + each - 1) / each)};
}

// Whole weight of a token that is left, given how many of its rank come before it; 0 if it was removed. `floor` is min-p.
__device__ __forceinline__ u64 weight_left(const Row& row, int id, Cut cut, u32 before, float floor) {
  u32 own = rank(row.logits[id]);
  bool left = own > cut.rank || (own == cut.rank && before < cut.ties);
  return left && weight(row, id) >= floor ? whole_weight(row, id) : 0;
}

// The token under `uniform` / 2^24 of the weight that is left, the tokens in order of their ids.
__device__ __forceinline__ int draw_left(const Row& row, Cut cut, float floor, u32 uniform, u64* weights, u32* ties,
                                         Search& search) {
  int part = (row.size + blockDim.x - 1) / blockDim.x;
  int begin = min((int)threadIdx.x * part, row.size), end = min(begin + part, row.size);
  u32 equal = 0;
  for (int id = begin; id < end; id++) equal += rank(row.logits[id]) == cut.rank;
  ties[threadIdx.x] = equal;
  __syncthreads();
  if (threadIdx.x == 0) {
    u32 before = 0;
    for (int i = 0; i < (int)blockDim.x; i++) {
      u32 own = ties[i];
      ties[i] = before, before += own;
    }
  }
  __syncthreads();
  u64 sum = 0;
  u32 before = ties[threadIdx.x];
  for (int id = begin; id < end; id++) {
    sum += weight_left(row, id, cut, before, floor);
    before += rank(row.logits[id]) == cut.rank;
  }
  weights[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    u64 total = 0;
    for (int i = 0; i < (int)blockDim.x; i++) total += weights[i];
    // uniform * total / 2^24 by way of 128 bits.
    u64 target = __umul64hi(total, uniform) << 40 | (total * uniform) >> 24;
    int i = 0;
    for (; i < (int)blockDim.x - 1 && target >= weights[i]; i++) target -= weights[i];
    search.wanted = target;
    search.prefix = i;
  }
  __syncthreads();
  if (threadIdx.x == search.prefix) {
    u64 target = search.wanted;
    before = ties[threadIdx.x];
    int chosen = begin;
    for (int id = begin; id < end; id++) {
      u64 own_weight = weight_left(row, id, cut, before, floor);
      before += rank(row.logits[id]) == cut.rank;
      if (target < own_weight) {
        chosen = id;
        break;
      }
      target -= own_weight;
    }
    search.above = chosen;
  }
  __syncthreads();
  int chosen = (int)search.above;
  __syncthreads();
  return chosen;
}

// Index of the weight of a line (`count` weights, `stride` apart in memory) on which `target` falls: the last
// nonzero weight if rounding leaves a rest. Earlier weights are subtracted from the target.
template <typename T> __device__ __forceinline__ int pick(const T* weights, int count, int stride, double& target) {
  int chosen = 0;
  for (int i = 0; i < count; i++) {
    double own = (double)weights[i * stride];
    if (own > 0.0) {
      chosen = i;
      if (target < own) break;
      target = __dadd_rn(target, -own);
    }
  }
  return chosen;
}

// The sums of the blocks of logits. A chunk's lie `chunk_count` apart: threads that add up neighboring chunks read neighboring
// words.
struct Sums {
  float* blocks;
  // The largest logits of the chunks, which their blocks' sums are relative to.
  float* most;
  int block_count, chunk_count;
  __device__ __forceinline__ int place(int block) const { return block % CHUNK_BLOCKS * chunk_count + block / CHUNK_BLOCKS; }
  __device__ __forceinline__ int blocks_of(int chunk) const { return min(block_count - chunk * CHUNK_BLOCKS, CHUNK_BLOCKS); }
  // What a chunk's sums are multiplied by to be relative to the row's largest logit.
  __device__ __forceinline__ double factor(const Row& row, int chunk) const {
    return (double)weight_beside(row, most[chunk], row.largest);
  }
};

// The token under `uniform` of the whole distribution: the chunk by its sum on the `line`, the 64 logits by theirs, the token
// by its weight.
__device__ __forceinline__ int draw_any(const Row& row, const Sums& sums, const double* line, double total, double uniform,
                                        float* tokens, double* rest, Search& search) {
  if (threadIdx.x == 0) {
    double target = __dmul_rn(uniform, total);
    int chunk = pick(line, sums.chunk_count, 1, target);
    target = target / sums.factor(row, chunk);
    int block = pick(sums.blocks + chunk, sums.blocks_of(chunk), sums.chunk_count, target);
    search.prefix = chunk * CHUNK_BLOCKS + block;
    rest[0] = target;
  }
  __syncthreads();
  int begin = (int)search.prefix * BLOCK_LOGITS, count = min(row.size - begin, BLOCK_LOGITS);
  float most = sums.most[search.prefix / CHUNK_BLOCKS];
  for (int i = threadIdx.x; i < count; i += blockDim.x) tokens[i] = weight_beside(row, row.logits[begin + i], most);
  __syncthreads();
  if (threadIdx.x == 0) {
    double target = rest[0];
    search.above = begin + pick(tokens, count, 1, target);
  }
  __syncthreads();
  return (int)search.above;
}

// A sample request, as words: how (0: sample, 1: the likeliest, 2: the given token), that token, key and prefix of the
// random stream, the position there (low, high), temperature, top-p (both f32), top-k, the row of logits, which
// several may share, and min-p (f32). A top-k of 0, a top-p of 1 and a min-p of 0 keep all.
#define REQUEST_WORDS 13

__device__ __forceinline__ Row row_of(const u32* request, const float* logits, int vocabulary, u64 stride) {
  return {logits + request[11] * stride, 0.f, __fdiv_rn(1.0f, __uint_as_float(request[8])), vocabulary};
}

// Values that sum_logits leaves for a request: the largest logit of each chunk, then the sum of each block of logits.
__device__ __forceinline__ int sums_of(int vocabulary, int& chunks) {
  int blocks = (vocabulary + BLOCK_LOGITS - 1) / BLOCK_LOGITS;
  chunks = (blocks + CHUNK_BLOCKS - 1) / CHUNK_BLOCKS;
  return chunks + blocks;
}

// sums [requests, chunks + blocks] from logits [rows, stride] and requests [requests, 13]; grid (chunks, requests), 256 threads.
// Half a warp takes 64 logits at a time: sixteen lanes with four each, then halves fold until one is left.
extern "C" __global__ void __launch_bounds__(256)
    sum_logits(float* sums, const float* logits, const u32* requests, int vocabulary, u64 stride) {
  SHARED_ARRAY(float, scratch, 33);
  const float lowest = __uint_as_float(0xff800000u);
  Row row = row_of(requests + (u64)blockIdx.y * REQUEST_WORDS, logits, vocabulary, stride);
  int chunks, count = sums_of(vocabulary, chunks), lane = threadIdx.x & 15, half = threadIdx.x >> 4;
  float* to = sums + (u64)blockIdx.y * count;
  float v[4][4], most = lowest;
  for (int turn = 0; turn < 4; turn++)
    for (int step = 0; step < 4; step++) {
      int id = (blockIdx.x * CHUNK_BLOCKS + turn * 16 + half) * BLOCK_LOGITS + step * 16 + lane;
      v[turn][step] = id < vocabulary ? row.logits[id] : lowest;
      most = fmaxf(most, v[turn][step]);
    }
  for (int offset = 16; offset; offset >>= 1) most = fmaxf(most, __shfl_xor_sync(FULL_WARP, most, offset));
  if ((threadIdx.x & 31) == 0) scratch[threadIdx.x >> 5] = most;
  __syncthreads();
  for (int warp = 0; warp < 8; warp++) most = fmaxf(most, scratch[warp]);
  if (threadIdx.x == 0) to[blockIdx.x] = most;
  if (most == lowest) most = 0.f;
  for (int turn = 0; turn < 4; turn++) {
    int block = blockIdx.x * CHUNK_BLOCKS + turn * 16 + half;
    float sum = 0.f;
    for (int step = 0; step < 4; step++)
      if (block * BLOCK_LOGITS + step * 16 + lane < vocabulary) sum = __fadd_rn(sum, weight_beside(row, v[turn][step], most));
    for (int offset = 8; offset; offset >>= 1) sum = __fadd_rn(sum, __shfl_xor_sync(FULL_WARP, sum, offset));
    if (lane == 0 && block < count - chunks) to[chunks + block] = sum;
  }
}

// answers [requests, 2] from logits [rows, stride], requests [requests, 13] and what sum_logits left of them, a block each: the
// token, and the bits of log-softmax(logits / temperature) of it before any truncation. Where logits are not numbers the token is
// 0xffffffff. Dynamic shared memory: 64 floats per 4096 logits.
extern "C" __global__ void __launch_bounds__(512, 2)
    sample_rows(u32* answers, const float* logits, const u32* requests, const float* given, int vocabulary, u64 stride) {
  SHARED_ARRAY(Search, searches, 1);
  SHARED_ARRAY(u64, weights, 512);
  SHARED_ARRAY(u32, ties, 512);
  SHARED_ARRAY(double, line, MOST_CHUNKS);
  SHARED_ARRAY(float, chunk_most, MOST_CHUNKS);
  SHARED_ARRAY(double, rest, 1);
  SHARED_ARRAY(float, tokens, BLOCK_LOGITS);
  DYNAMIC_SHARED(float, block_sums);
  const u32* request = requests + (u64)blockIdx.x * REQUEST_WORDS;
  u32* answer = answers + 2 * (u64)blockIdx.x;
  Search& search = searches[0];
  float temperature = __uint_as_float(request[8]), share = __uint_as_float(request[9]);
  Row row = row_of(request, logits, vocabulary, stride);

  int chunks, count = sums_of(vocabulary, chunks);
  Sums sums = {block_sums, chunk_most, count - chunks, chunks};
  given += (u64)blockIdx.x * count;
  for (int chunk = threadIdx.x; chunk < chunks; chunk += blockDim.x) sums.most[chunk] = given[chunk];
  for (int block = threadIdx.x; block < sums.block_count; block += blockDim.x) sums.blocks[sums.place(block)] = given[chunks + block];
  __syncthreads();
  // The same in every thread.
  row.largest = __uint_as_float(0xff800000u);
  for (int chunk = 0; chunk < sums.chunk_count; chunk++) row.largest = fmaxf(row.largest, sums.most[chunk]);
  for (int chunk = threadIdx.x; chunk < sums.chunk_count; chunk += blockDim.x) {
    double sum = 0.0;
    for (int i = 0, count = sums.blocks_of(chunk); i < count; i++)
      sum = __dadd_rn(sum, (double)sums.blocks[i * sums.chunk_count + chunk]);
    line[chunk] = __dmul_rn(sum, sums.factor(row, chunk));
  }
  if (threadIdx.x == 0) search.above = vocabulary;
  __syncthreads();
  double total = 0.0;
  for (int chunk = 0; chunk < sums.chunk_count; chunk++) total = __dadd_rn(total, line[chunk]);
  if (!(total > 0.0 && total < 1e300)) {
    if (threadIdx.x == 0) answer[0] = NO_TOKEN, answer[1] = 0;
    return;
  }

  u32 mode = request[0], kept = request[10];
  u32 uniform = random_word(request + 2, (u64)request[7] << 32 | request[6]) >> 8;
  float floor = __uint_as_float(request[12]);
  bool by_count = kept > 0 && kept < (u32)vocabulary, by_mass = share < 1.f;
  int chosen;
  if (mode == 2) {
    chosen = (int)request[1];
  } else if (mode == 1) {
    for (int id = threadIdx.x; id < vocabulary; id += blockDim.x)
      if (row.logits[id] == row.largest) {
        atomicMin(&search.above, (u64)id);
        break;
      }
    __syncthreads();
    chosen = (int)search.above;
  } else if (by_count || by_mass || floor > 0.f) {
    Cut cut = {0, 0};
    if (by_count) cut = shortest(row, kept, true, cut, search);
    if (by_mass) {
      if (threadIdx.x == 0) search.above = 0;
      u64 edge = cut.ties ? (u64)cut.ties * each_of(row, cut.rank, search) : 0, own = 0;
      __syncthreads();
      for (int id = threadIdx.x; id < vocabulary; id += blockDim.x)
        if (rank(row.logits[id]) > cut.rank) own += whole_weight(row, id);
      atomicAdd(&search.above, own);
      __syncthreads();
      u64 mass = search.above + edge, wanted = (u64)__dmul_rn((double)share, (double)mass);
      __syncthreads();
      cut = shortest(row, wanted ? wanted : 1, false, cut, search);
    }
    chosen = draw_left(row, cut, floor, uniform, weights, ties, search);
  } else {
    chosen = draw_any(row, sums, line, total, (double)uniform * (1.0 / 16777216.0), tokens, rest, search);
  }
  if (threadIdx.x == 0) {
    answer[0] = chosen;
    double logit = __dadd_rn((double)row.logits[chosen], -(double)row.largest);
    answer[1] = __float_as_uint((float)__dadd_rn(logit / (double)temperature, -log(total)));
  }
}
