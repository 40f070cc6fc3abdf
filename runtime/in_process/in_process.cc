#include "runtime/in_process/in_process.h"

#include <numeric>
#include <stdexcept>

#include "ir/diagnostic.h"
#include "runtime/in_process/in_process_communicator.h"
#include "runtime/in_process/world.h"

namespace shardc {

std::vector<std::unique_ptr<Communicator>> MakeInProcessWorld(int n) {
  if (n < 1) throw std::invalid_argument(StrCat("a world needs at least 1 rank, not ", n));
  std::vector<int> ranks(n);
  std::iota(ranks.begin(), ranks.end(), 0);
  auto world = std::make_shared<in_process::World>(n);
  auto group = std::make_shared<in_process::Group>(world, std::move(ranks));
  world->Register(group);
  std::vector<std::unique_ptr<Communicator>> out;
  for (int r = 0; r < n; ++r) {
    out.push_back(std::make_unique<in_process::InProcessCommunicator>(group, r));
  }
  return out;
}

}  // namespace shardc
