// Plans in memory on the executor of the CUDA backend, on a FakeDevice.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "frontend/gpt_config.h"
#include "ir/shard_copy.h"
#include "passes/pipeline.h"
#include "runtime/cuda/executor.h"
#include "runtime/groups.h"
#include "runtime/session.h"
#include "tests/exec/harness.h"
#include "tests/runtime/fake_device.h"

namespace shardc::testing {

// Runs the reference kernel when the device gets to it, and before that overwrites its workspace.
class HostKernel : public cuda::CudaKernel {
 public:
  HostKernel(FakeDevice& device, const KernelRequest& r, int64_t workspace = 128)
      : device_(device),
        kernel_(MakeReferenceKernel(r)),
        op_(r.instruction.op),
        workspace_(workspace) {
    for (const TensorView& v : r.call.in) Touch(v, false);
    for (const TensorView& v : r.call.out) Touch(v, true);
  }
  void Tune(const cuda::Launch& launch, cuda::KernelChoices&) override {
    EXPECT_GE(launch.workspace_bytes, workspace_bytes());
  }
  void Enqueue(const cuda::Launch& launch) override {
    EXPECT_GE(launch.workspace_bytes, workspace_bytes());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(launch.workspace) % 256, 0u);
    std::vector<FakeDevice::Touch> touches = touches_;
    touches.push_back({launch.workspace, workspace_, true});
    device_.Enqueue(op_, launch.stream, std::move(touches), [this, to = launch.workspace] {
      std::memset(to, 0xff, static_cast<size_t>(workspace_));
      kernel_->Run();
    });
  }
  int64_t workspace_bytes() const override { return workspace_; }

 private:
  void Touch(const TensorView& v, bool write) {
    touches_.push_back({v.data, v.num_elements() * DTypeSize(v.dtype), write});
  }
  FakeDevice& device_;
  std::unique_ptr<Kernel> kernel_;
  std::string op_;
  int64_t workspace_;
  std::vector<FakeDevice::Touch> touches_;
};

// By the instruction, in bytes.
using Workspaces = std::function<int64_t(const KernelRequest&)>;

inline cuda::KernelMaker KernelsOn(FakeDevice& device, Workspaces workspace = {}) {
  return [&device, workspace = std::move(workspace)](const KernelRequest& r) {
    return std::make_unique<HostKernel>(device, r, workspace ? workspace(r) : 128);
  };
}

// A small GPT, cut over a mesh.
class Compiled {
 public:
  struct Model {
    int vocab = 64, seq = 8;
    std::string precision = "f32";
    int microbatches = 1;
  };
  Compiled(const std::string& spec, const std::string& mesh, const std::string& optimizer = "")
      : Compiled(spec, mesh, optimizer, Model{}) {}
  Compiled(const std::string& spec, const std::string& mesh, const std::string& optimizer,
           const Model& model)
      : graph_(BuildGpt(ParseBuiltin(StrCat("builtin:gpt?layers=2,hidden=32,heads=4,batch=4,vocab=",
                                            model.vocab, ",seq=", model.seq)))) {
    inputs_ = RandomInputs(graph_, 64, 1);
    inputs_["labels"] = inputs_.at("input_ids");
    PipelineOptions options;
    if (!optimizer.empty()) options.optimizer.kind = optimizer;
    options.precision.compute = model.precision;
    Spec parsed = SpecOf(spec);
    parsed.microbatches.count = model.microbatches;
    CompileGraph(graph_, parsed, MeshFor(parsed, Mesh::Parse(mesh)), options);
    programs_ = ProgramsFor(graph_);
    for (const Program& p : programs_) pointers_.push_back(&p);
    stage_axes_ = StageAxes(programs_);
  }

  std::unique_ptr<cuda::Executor> On(FakeDevice& device, cuda::Carrier& carrier,
                                     cuda::ExecutorOptions o = {}, Workspaces workspace = {}) {
    auto e = std::make_unique<cuda::Executor>(device, carrier, pointers_, stage_axes_, o,
                                              KernelsOn(device, std::move(workspace)),
                                              ReaderFor(graph_));
    SetInputs(*e);
    return e;
  }
  void SetInputs(cuda::Executor& e) const {
    for (size_t r = 0; r < programs_.size(); ++r) {
      for (const NamedBuffer& i : programs_[r].inputs) {
        GlobalToLocal(inputs_.at(i.name).raw(), programs_[r].buffers[i.buffer].type,
                      programs_[r].mesh, static_cast<int64_t>(r), e.Input(r, i.buffer));
      }
    }
  }
  // Of all stages.
  std::vector<NamedBuffer> Outputs() const {
    std::vector<NamedBuffer> all;
    std::set<std::string> names;
    for (const Program& p : programs_) {
      for (const NamedBuffer& o : p.outputs) {
        if (names.insert(o.name).second) all.push_back(o);
      }
    }
    return all;
  }
  HostTensor Gather(cuda::Executor& e, const NamedBuffer& entry) const {
    HostTensor out;
    for (size_t r = 0; r < programs_.size(); ++r) {
      const Program& p = programs_[r];
      for (auto list : {&Program::outputs, &Program::states}) {
        for (const NamedBuffer& b : p.*list) {
          if (b.name != entry.name) continue;
          const TensorType& type = p.buffers[b.buffer].type;
          if (out.num_elements() == 0) out = HostTensor(type.dtype, type.shape);
          LocalToGlobal(e.Fetch(r, b.buffer), type, p.mesh, static_cast<int64_t>(r), out.raw());
        }
      }
    }
    return out;
  }
  std::unique_ptr<Session> OnCpu() const {
    SessionOptions options;
    options.reference_kernels = true;
    auto session = std::make_unique<Session>(programs_, options, ReaderFor(graph_));
    for (const auto& [name, value] : inputs_) session->SetInput(name, value);
    return session;
  }

  Graph graph_;
  std::vector<Program> programs_;
  std::vector<const Program*> pointers_;
  std::vector<int> stage_axes_;
  Tensors inputs_;
};

}  // namespace shardc::testing
