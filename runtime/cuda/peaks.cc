#include "runtime/cuda/peaks.h"

#include <algorithm>
#include <functional>

#include "ir/diagnostic.h"
#include "runtime/cuda/owned.h"

namespace shardc::cuda {
namespace {

constexpr int kTimings = 5;

// Seconds of the fastest of some calls, after one that is not counted.
double Fastest(Device& device, Stream s, const std::function<void()>& enqueue) {
  struct Events {
    explicit Events(Device& d) : device(d), begin(d.MakeTimedEvent()), end(d.MakeTimedEvent()) {}
    ~Events() {
      device.DestroyEvent(begin);
      device.DestroyEvent(end);
    }
    Device& device;
    Event begin, end;
  } events(device);
  enqueue();
  double fastest = 0;
  for (int i = 0; i < kTimings; ++i) {
    device.Record(events.begin, s);
    enqueue();
    device.Record(events.end, s);
    device.Synchronize(s);
    double took = device.Milliseconds(events.begin, events.end) / 1e3;
    if (i == 0 || took < fastest) fastest = took;
  }
  return fastest;
}

// What the products of the program are computed in.
DType TypeOfProducts(const Program& program) {
  auto most = std::max_element(
      program.instructions.begin(), program.instructions.end(),
      [](const Instruction& a, const Instruction& b) { return a.flops < b.flops; });
  if (most == program.instructions.end() || most->operands.empty()) return DType::kF32;
  DType dtype = program.buffers[most->operands[0]].type.dtype;
  return IsFloat(dtype) ? dtype : DType::kF32;
}

double GemmFlops(Device& device, Stream s, DType dtype, int64_t n, const KernelMaker& make_kernel) {
  const int64_t bytes = n * n * DTypeSize(dtype);
  Memory data(device, 3 * bytes, "to measure the peak of products");
  // Zeros are multiplied faster than other numbers.
  device.Fill(data.data(), 0x3c, 3 * bytes, s);
  const TensorView in[] = {{data.data(), dtype, {n, n}}, {data.data() + bytes, dtype, {n, n}}};
  const TensorView out[] = {{data.data() + 2 * bytes, dtype, {n, n}}};
  Program program;
  Instruction product;
  product.op = "matmul";
  auto kernel = make_kernel({program, product, KernelCall{&product.attrs, in, out, nullptr, 0, 1}});
  if (!kernel) return 0;
  Launch launch = device.LaunchOn(s);
  kernel->Prepare(launch);
  Memory workspace(device, kernel->workspace_bytes(), "to measure the peak of products");
  launch.workspace = workspace.data();
  launch.workspace_bytes = workspace.bytes();
  double seconds = Fastest(device, s, [&] { kernel->Enqueue(launch); });
  device.Synchronize(s);
  const auto size = static_cast<double>(n);
  return seconds > 0 ? 2 * size * size * size / seconds : 0;
}

double CopyBytes(Device& device, Stream s, int64_t bytes) {
  Memory data(device, 2 * bytes, "to measure the peak of copies");
  device.Fill(data.data(), 0x3c, 2 * bytes, s);
  double seconds =
      Fastest(device, s, [&] { device.Copy(data.data() + bytes, data.data(), bytes, s); });
  return seconds > 0 ? 2 * static_cast<double>(bytes) / seconds : 0;
}

// 0 where that fails for want of memory.
double UnlessTooLarge(const std::function<double()>& measure) {
  try {
    return measure();
  } catch (const Diagnostic& d) {
    if (d.code() != ExitCode::kMemory) throw;
    return 0;
  }
}

}  // namespace

MachinePeaks MeasurePeaks(Device& device, const Program& program, const KernelMaker& make_kernel,
                          const PeakSizes& sizes) {
  device.Activate();
  OwnedStream stream(device, false);
  const DType dtype = TypeOfProducts(program);
  MachinePeaks peaks;
  peaks.gemm_flops = UnlessTooLarge(
      [&] { return GemmFlops(device, stream.get(), dtype, sizes.matrix, make_kernel); });
  peaks.copy_bytes = UnlessTooLarge([&] { return CopyBytes(device, stream.get(), sizes.copied); });
  return peaks;
}

}  // namespace shardc::cuda
