// Cross entropy over a vocabulary that may be cut into shards.
//
// A shard holds logits[rows, stride] whose columns [0, valid) are the global ids [vocab_offset,
// vocab_offset + valid); the columns [valid, stride) are padding and never count. The loss of a row
// is lse - logit[label], and 0 where the label is ignore_index. The serial kernel does it in one
// go, with a running max as in Milakov & Gimelshein, "Online normalizer calculation for softmax"
// (2018); of a cut vocabulary the runtime takes row_max, then sum_exp with the max of all shards.
#ifndef RUNTIME_CPU_KERNELS_CROSS_ENTROPY_H_
#define RUNTIME_CPU_KERNELS_CROSS_ENTROPY_H_

#include <cstdint>

namespace shardc::cpu {

struct LogitShard {
  const float* logits = nullptr;
  int64_t rows = 0;
  int64_t stride = 0;               // physical columns
  int64_t valid = 0;                // columns that count
  const int64_t* labels = nullptr;  // [rows] global ids
  int64_t vocab_offset = 0;
  int64_t ignore_index = -100;
  const uint16_t* logits_bf16 = nullptr;  // in place of logits
};

struct CrossEntropyKernels {
  // max[r] over the valid columns; -inf if there are none, NaN if one is. Reads no labels.
  void (*row_max)(const LogitShard&, float* max, int threads);
  void (*row_max_bf16)(const LogitShard&, uint16_t* max, int threads);
  // sum[r] = sum of exp(logit - max[r]); target[r] = the label's logit, 0 if it lies in another
  // shard or is ignored.
  void (*sum_exp)(const LogitShard&, const float* max, float* sum, float* target, int threads);
  // The whole vocabulary in one shard: loss[r], lse[r]. A label outside [0, valid) that is not
  // ignored is the caller's to refuse; here it counts as a target logit of 0.
  void (*forward)(const LogitShard&, float* loss, float* lse, int threads);
  // d_logits[r, c] = d_loss[r] * (exp(logit - lse[r]) - [c + vocab_offset == label]); 0 in ignored
  // rows and padding. d_logits [rows, stride] may be the logits themselves.
  void (*backward)(const LogitShard&, const float* d_loss, const float* lse, float* d_logits,
                   int threads);
  // The same with d_logits in bf16, which may be the logits if they are.
  void (*backward_bf16)(const LogitShard&, const float* d_loss, const float* lse,
                        uint16_t* d_logits, int threads);
  // forward and backward row by row; one of d_logits and d_logits_bf16, which may be the logits of
  // the same type. d_loss may be loss.
  void (*with_grad)(const LogitShard&, const float* d_loss, float* loss, float* d_logits,
                    uint16_t* d_logits_bf16, int threads);
};

}  // namespace shardc::cpu

#endif  // RUNTIME_CPU_KERNELS_CROSS_ENTROPY_H_
