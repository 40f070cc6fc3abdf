// The doors of libshardc_cudnn.so: attention by cuDNN's graph API.
#include <cudnn_frontend.h>

#include <map>
#include <mutex>
#include <unordered_map>

#include "runtime/cuda/cudnn/attention_library.h"

namespace shardc::cuda {
namespace {

namespace fe = cudnn_frontend;
using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;

// cuDNN of one stream.
class Handle {
 public:
  explicit Handle(CUstream_st* stream) {
    if (cudnnCreate(&handle_) != CUDNN_STATUS_SUCCESS) {
      handle_ = nullptr;
    } else if (cudnnSetStream(handle_, stream) != CUDNN_STATUS_SUCCESS) {
      cudnnDestroy(handle_);
      handle_ = nullptr;
    }
  }
  ~Handle() {
    if (handle_) cudnnDestroy(handle_);
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  cudnnHandle_t get() const { return handle_; }

 private:
  cudnnHandle_t handle_ = nullptr;
};

// One for all engines of a stream; gone with the last of them.
std::shared_ptr<Handle> HandleOf(CUstream_st* stream) {
  static std::mutex mutex;
  static auto& handles = *new std::map<CUstream_st*, std::weak_ptr<Handle>>;
  std::lock_guard lock(mutex);
  std::shared_ptr<Handle> handle = handles[stream].lock();
  if (!handle) handles[stream] = handle = std::make_shared<Handle>(stream);
  return handle;
}

// Names of tensors in a graph.
enum Uid : int64_t { kQ = 1, kK, kV, kO, kStatistics, kGrad, kDq, kDk, kDv };

class CudnnAttention : public AttentionEngine {
 public:
  // sm: the compute capability; 0: of the current GPU.
  CudnnAttention(const AttentionProblem& p, int sm) : p_(p) {
    if (sm > 0) graph_.set_sm_version(sm);  // nodes take it over when they are added
    graph_.set_io_data_type(p_.bf16 ? fe::DataType_t::BFLOAT16 : fe::DataType_t::HALF)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    if (p_.backward) {
      AddBackward();
    } else {
      AddForward();
    }
  }

  // "" or why not.
  std::string BuildFor(CUstream_st* stream) {
    handle_ = HandleOf(stream);
    if (!handle_->get()) return "cudnnCreate failed";
    auto status = graph_.build(handle_->get(), {fe::HeurMode_t::A});
    if (status.is_good()) status = graph_.get_workspace_size(workspace_);
    return Text(status);
  }
  // As far as it goes for a GPU that is not here.
  std::string BuildWithout(const std::string& gpu) {
    auto properties = std::make_shared<fe::DeviceProperties>();
    auto status = properties->deserialize(std::vector<uint8_t>(gpu.begin(), gpu.end()));
    if (status.is_good()) {
      graph_.set_device_properties(properties);
      status = graph_.validate();
    }
    if (status.is_good()) status = graph_.build_operation_graph();
    if (status.is_good()) status = graph_.create_execution_plans({fe::HeurMode_t::A});
    if (status.is_good()) status = graph_.check_support();
    return Text(status);
  }

  int64_t workspace_bytes() const override { return workspace_; }

  std::string Run(const AttentionTensors& t, void* workspace) override {
    std::unordered_map<int64_t, void*> data = {
        {kQ, t.q}, {kK, t.k}, {kV, t.v}, {kO, t.o}, {kStatistics, t.statistics}};
    if (p_.backward) data.insert({{kGrad, t.grad}, {kDq, t.dq}, {kDk, t.dk}, {kDv, t.dv}});
    return Text(graph_.execute(handle_->get(), data, workspace));
  }

 private:
  using Strides = std::array<int64_t, 3>;
  static std::string Text(fe::error_t status) {
    return status.is_good() ? "" : "cuDNN: " + status.get_message();
  }
  static std::vector<int64_t> Four(const Strides& s) { return {s[0], s[1], s[2], 1}; }
  std::vector<int64_t> Queries(int64_t width) const { return {p_.b, p_.hq, p_.s, width}; }
  std::vector<int64_t> Keys(int64_t width) const { return {p_.b, p_.hkv, p_.t, width}; }
  std::vector<int64_t> StatisticStrides() const { return {p_.hq * p_.s, p_.s, 1, 1}; }

  Tensor Operand(int64_t uid, const char* name, const std::vector<int64_t>& dims,
                 const std::vector<int64_t>& strides) {
    return graph_.tensor(
        fe::graph::Tensor_attributes().set_name(name).set_uid(uid).set_dim(dims).set_stride(
            strides));
  }
  static void Result(const Tensor& t, int64_t uid, const std::vector<int64_t>& dims,
                     const std::vector<int64_t>& strides) {
    t->set_output(true).set_uid(uid).set_dim(dims).set_stride(strides);
  }
  template <typename Options>
  void Describe(Options& options) const {
    options.set_attn_scale(p_.scale);
    if (!p_.causal) return;
    options.set_diagonal_alignment(p_.s == p_.t ? fe::DiagonalAlignment_t::TOP_LEFT
                                                : fe::DiagonalAlignment_t::BOTTOM_RIGHT);
    options.set_diagonal_band_right_bound(0);
  }

  void AddForward() {
    auto options = fe::graph::SDPA_attributes().set_name("attention").set_generate_stats(true);
    Describe(options);
    auto [o, statistics] = graph_.sdpa(Operand(kQ, "q", Queries(p_.d), Four(p_.q_strides)),
                                       Operand(kK, "k", Keys(p_.d), Four(p_.k_strides)),
                                       Operand(kV, "v", Keys(p_.dv), Four(p_.v_strides)), options);
    Result(o, kO, Queries(p_.dv), Four(p_.o_strides));
    Result(statistics, kStatistics, Queries(1), StatisticStrides());
    statistics->set_data_type(fe::DataType_t::FLOAT);
  }
  void AddBackward() {
    auto options = fe::graph::SDPA_backward_attributes()
                       .set_name("attention_grad")
                       .set_deterministic_algorithm(!p_.may_vary);
    Describe(options);
    Tensor statistics = Operand(kStatistics, "statistics", Queries(1), StatisticStrides());
    statistics->set_data_type(fe::DataType_t::FLOAT);
    auto [dq, dk, dv] = graph_.sdpa_backward(
        Operand(kQ, "q", Queries(p_.d), Four(p_.q_strides)),
        Operand(kK, "k", Keys(p_.d), Four(p_.k_strides)),
        Operand(kV, "v", Keys(p_.dv), Four(p_.v_strides)),
        Operand(kO, "o", Queries(p_.dv), Four(p_.o_strides)),
        Operand(kGrad, "do", Queries(p_.dv), Four(p_.o_strides)), statistics, options);
    Result(dq, kDq, Queries(p_.d), Four(p_.q_strides));
    Result(dk, kDk, Keys(p_.d), Four(p_.k_strides));
    Result(dv, kDv, Keys(p_.dv), Four(p_.v_strides));
  }

  AttentionProblem p_;
  std::shared_ptr<Handle> handle_;
  fe::graph::Graph graph_;
  int64_t workspace_ = 0;
};

template <typename Build>
AttentionEngine* Make(const AttentionProblem& problem, int sm, std::string* why_not,
                      const Build& build) {
  try {
    auto engine = std::make_unique<CudnnAttention>(problem, sm);
    *why_not = build(*engine);
    if (why_not->empty()) return engine.release();
  } catch (const std::exception& e) {
    *why_not = e.what();
  }
  return nullptr;
}

}  // namespace
}  // namespace shardc::cuda

extern "C" shardc::cuda::AttentionEngine* shardc_cudnn_make_attention(
    const shardc::cuda::AttentionProblem& problem, CUstream_st* stream, std::string* why_not) {
  return shardc::cuda::Make(problem, 0, why_not, [&](auto& e) { return e.BuildFor(stream); });
}

extern "C" shardc::cuda::AttentionEngine* shardc_cudnn_plan_attention(
    const shardc::cuda::AttentionProblem& problem, const std::string& gpu, int sm,
    std::string* why_not) {
  return shardc::cuda::Make(problem, sm, why_not, [&](auto& e) { return e.BuildWithout(gpu); });
}

extern "C" int64_t shardc_cudnn_version() { return static_cast<int64_t>(cudnnGetVersion()); }
