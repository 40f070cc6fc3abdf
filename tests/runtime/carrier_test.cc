// shared_device on a device that does its work in any order that streams and events allow.
#include "tests/runtime/carrier_suite.h"
#include "tests/runtime/fake_device.h"

namespace shardc::testing {
namespace {

TEST(SharedDevice, GivesWhatACarrierMust) {
  for (int ranks : {1, 2, 3, 8}) {
    for (uint64_t seed = 0; seed < 3; ++seed) {
      FakeDevice device;
      device.remember = false;
      device.Defer(seed);
      CheckSharedDevice(device, ranks, 1003);
      EXPECT_EQ(device.live, 0);
    }
  }
}

}  // namespace
}  // namespace shardc::testing
