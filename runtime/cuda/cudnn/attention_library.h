// Attention by another library, which lies in a plugin of its own (libshardc_cudnn.so): the backend
// runs where that library, or the plugin, is missing.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>

struct CUstream_st;

namespace shardc::cuda {

// Dense tensors of bf16 or f16, by strides of batch, head and row in elements; elements of a row
// are neighbours. Query i sees keys up to i + t - s if causal, else all. Statistics are f32
// [b, hq, s]: the logarithm of the sum of the exponentials of a query's scaled scores.
struct AttentionProblem {
  bool backward = false, bf16 = true, causal = false;
  int64_t b = 0, hq = 0, hkv = 0, s = 0, t = 0, d = 0, dv = 0;
  float scale = 1;
  std::array<int64_t, 3> q_strides{}, k_strides{}, v_strides{}, o_strides{};
  bool together = false;  // q, k, v lie between each other's rows; so do their gradients
  // Rows of k and v behind those t, which no query sees; a backward leaves dk and dv alone there.
  int64_t unseen = 0;
  bool may_vary = false;  // a backward may sum in an order of each run's own; else the same bits
};

// Device memory. A forward writes o and statistics; a backward reads them, and writes dq, dk, dv
// (laid out as q, k, v).
struct AttentionTensors {
  void *q = nullptr, *k = nullptr, *v = nullptr, *o = nullptr, *statistics = nullptr;
  void *grad = nullptr, *dq = nullptr, *dk = nullptr, *dv = nullptr;  // of a backward
};

class AttentionEngine {
 public:
  virtual ~AttentionEngine() = default;
  virtual int64_t workspace_bytes() const = 0;  // aligned to 256
  // Enqueues on the stream that it was made for. Returns "" or what went wrong.
  virtual std::string Run(const AttentionTensors& tensors, void* workspace) = 0;
};

// "shardc_cudnn_make_attention" of libshardc_cudnn.so. Null, with the reason, when the library does
// not take the problem. Does not throw.
using MakeAttentionEngine = AttentionEngine*(const AttentionProblem& problem, CUstream_st* stream,
                                             std::string* why_not);
// "shardc_cudnn_plan_attention", for tests: whether there is an engine for a GPU that is not here,
// described in cuDNN's JSON, of compute capability sm (90: 9.0). What it gives cannot run.
using PlanAttentionEngine = AttentionEngine*(const AttentionProblem& problem,
                                             const std::string& gpu, int sm, std::string* why_not);
// "shardc_cudnn_version": what the speed of an engine depends on besides the problem and the GPU.
using AttentionLibraryVersion = int64_t();

}  // namespace shardc::cuda
