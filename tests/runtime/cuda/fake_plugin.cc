// A libshardc_cuda.so without a GPU: devices are FakeDevices, kernels are the CUDA sources compiled
// for the CPU, NCCL is the fake libnccl.so.2. One GPU a process: the emulation runs one kernel at a
// time.
#include <dlfcn.h>

#include <cstdlib>
#include <utility>

#include "runtime/cuda/kernels/batch.h"
#include "runtime/cuda/native/nccl_carrier.h"
#include "runtime/cuda/runner.h"
#include "runtime/cuda_loader/plugin.h"
#include "tests/runtime/cuda/fake_gpus.h"
#include "tests/runtime/emulated_epilogues.h"
#include "tests/runtime/fake_device.h"

namespace shardc::testing {
namespace {

FakeDevice* device = nullptr;

// Runs when the device gets to it.
class EmulatedKernel : public cuda::CudaKernel {
 public:
  explicit EmulatedKernel(std::shared_ptr<cuda::CudaKernel> kernel) : kernel_(std::move(kernel)) {}
  void Enqueue(const cuda::Launch& launch) override {
    device->Enqueue("kernel", launch.stream, {}, [k = kernel_, launch] { k->Enqueue(launch); });
  }
  int64_t workspace_bytes() const override { return kernel_->workspace_bytes(); }

 private:
  std::shared_ptr<cuda::CudaKernel> kernel_;
};

// Each kernel and each product with an epilogue takes the same time. SHARDC_FAKE_EPILOGUES=wrong:
// the products' results are.
EmulatedEpilogues& Epilogues() {
  static auto& library = *[] {
    auto* made = new EmulatedEpilogues;
    const char* text = std::getenv("SHARDC_FAKE_EPILOGUES");
    made->wrong = text && std::string(text) == "wrong";
    made->synchronize = [](cuda::Stream s) { device->Synchronize(s); };
    made->defer = [](EmulatedEpilogues::Kernel kernel, const cuda::FusedProduct&) {
      return std::make_unique<EmulatedKernel>(std::move(kernel));
    };
    return made;
  }();
  return library;
}

int Gpus() {
  const char* text = std::getenv("SHARDC_FAKE_GPUS");
  return text ? std::atoi(text) : 8;
}

std::unique_ptr<cuda::Carrier> Connect(cuda::Device& to, const Program& program,
                                       const std::vector<std::vector<int>>& groups,
                                       std::unique_ptr<Communicator> host) {
  void* nccl = dlopen("libnccl.so.2", RTLD_NOW | RTLD_GLOBAL);
  void* use = nccl ? dlsym(nccl, "shardc_fake_nccl_use") : nullptr;
  if (use) reinterpret_cast<FakeNcclUse*>(use)(&FakeDevicesForNccl());
  return cuda::MakeNccl(to, program, groups, std::move(host));
}

// When a device does its work: at once, in any order that streams and events allow, or in a thread
// of its own, for collectives that wait for other processes.
enum class Doing { kAtOnce, kAnyOrder, kAlongside };

cuda::Machine FakeMachine(Doing doing) {
  cuda::Machine machine;
  machine.gpus = Gpus();
  machine.open = [doing](int) {
    static uint64_t seed = 0;
    auto made = std::make_unique<FakeDevice>();
    made->remember = false;
    if (doing == Doing::kAnyOrder) made->Defer(++seed);
    if (doing == Doing::kAlongside) made->RunAlongside();
    device = made.get();
    return made;
  };
  machine.identify = [](int gpu) { return cuda::GpuIdentity{static_cast<uint8_t>(gpu)}; };
  machine.connect = Connect;
  auto defer = [](std::unique_ptr<cuda::CudaKernel> kernel) -> std::unique_ptr<cuda::CudaKernel> {
    return kernel ? std::make_unique<EmulatedKernel>(std::move(kernel)) : nullptr;
  };
  machine.make_kernel = [defer](const KernelRequest& r) {
    return defer(cuda::emulated::MakeKernelFor(r));
  };
  machine.make_joined = [defer](std::span<const KernelRequest> run) {
    return defer(cuda::emulated::MakeJoinedKernelFor(run));
  };
  machine.epilogues = &Epilogues();
  machine.always_connect = std::getenv("SHARDC_ALWAYS_NCCL") != nullptr;
  return machine;
}

}  // namespace
}  // namespace shardc::testing

using shardc::testing::Doing;
using shardc::testing::FakeMachine;

extern "C" int shardc_cuda_version() { return shardc::kCudaPluginVersion; }

extern "C" int shardc_cuda_count_gpus() { return shardc::testing::Gpus(); }

extern "C" shardc::cuda::Device* shardc_cuda_open_gpu(int gpu) {
  return FakeMachine(Doing::kAtOnce).open(gpu).release();
}

extern "C" shardc::cuda::CudaKernel* shardc_cuda_make_kernel(const shardc::KernelRequest* request) {
  return FakeMachine(Doing::kAtOnce).make_kernel(*request).release();
}

extern "C" shardc::cuda::EpilogueLibrary* shardc_cuda_epilogues() {
  return &shardc::testing::Epilogues();
}

extern "C" shardc::cuda::Carrier* shardc_cuda_connect(shardc::cuda::Device* device,
                                                      const shardc::Program* program,
                                                      const std::vector<std::vector<int>>* groups,
                                                      std::unique_ptr<shardc::Communicator>* host) {
  return shardc::testing::Connect(*device, *program, *groups, std::move(*host)).release();
}

extern "C" shardc::StepRunner* shardc_cuda_make_runner(const shardc::RunnerRequest* request) {
  shardc::cuda::Machine machine = FakeMachine(Doing::kAnyOrder);
  if (machine.always_connect) machine = FakeMachine(Doing::kAlongside);
  return shardc::cuda::MakeRunnerOn(machine, *request).release();
}

extern "C" shardc::StepRunner* shardc_cuda_make_rank(const shardc::RunnerRequest* request,
                                                     shardc::ProcessSeat* seat) {
  return shardc::cuda::MakeRankOn(FakeMachine(Doing::kAlongside), *request, std::move(*seat))
      .release();
}
