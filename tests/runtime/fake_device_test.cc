// That the recording device finds what a test of the executor counts on it to find.
#include "tests/runtime/fake_device.h"

#include <gmock/gmock.h>

#include <set>

namespace shardc::testing {
namespace {

using ::testing::IsEmpty;

TEST(FakeDevice, FindsARaceAndAnEventThatPreventsIt) {
  FakeDevice device;
  cuda::Stream a = device.MakeStream(false), b = device.MakeStream(false);
  std::byte* p = device.Allocate(64, "p");
  device.Fill(p, 1, 64, a);
  device.Fill(p + 32, 2, 32, b);
  EXPECT_EQ(device.Races().size(), 1u);
  device.Forget();
  device.Fill(p, 1, 64, a);
  cuda::Event e = device.MakeEvent();
  device.Record(e, a);
  device.Fill(p + 60, 3, 1, a);  // after the event
  device.Wait(b, e);
  device.Fill(p, 2, 32, b);
  EXPECT_THAT(device.Races(), IsEmpty());
  device.Fill(p + 60, 2, 1, b);
  EXPECT_EQ(device.Races().size(), 1u);
}

// What `to` holds after it was filled on one stream and read on another.
std::set<int> ReadOnAnotherStream(bool with_event, bool captured) {
  std::set<int> seen;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    FakeDevice device;
    device.Defer(seed);
    cuda::Stream a = device.MakeStream(false), b = device.MakeStream(false);
    std::byte *from = device.Allocate(1, "from"), *to = device.Allocate(1, "to");
    cuda::Event fork = device.MakeEvent(), filled = device.MakeEvent(), join = device.MakeEvent();
    auto work = [&] {
      device.Record(fork, a);
      device.Wait(b, fork);
      device.Fill(from, 1, 1, a);
      device.Record(filled, a);
      if (with_event) device.Wait(b, filled);
      device.Copy(to, from, 1, b);
      device.Record(join, b);
      device.Wait(a, join);
    };
    if (captured) {
      device.BeginCapture(a);
      work();
      device.LaunchGraph(device.EndCapture(a), a);
    } else {
      work();
    }
    device.Synchronize(a);
    seen.insert(static_cast<int>(*to));
  }
  return seen;
}

TEST(FakeDevice, ALackingWaitGivesSeveralResultsWhenDeferred) {
  for (bool captured : {false, true}) {
    EXPECT_EQ(ReadOnAnotherStream(true, captured), (std::set<int>{1}));
    EXPECT_EQ(ReadOnAnotherStream(false, captured), (std::set<int>{1, 0x7b}));
  }
}

TEST(FakeDevice, WhatNobodyWaitsForStaysBehind) {
  FakeDevice device;
  device.Defer(1);
  cuda::Stream a = device.MakeStream(false), b = device.MakeStream(false);
  std::byte* p = device.Allocate(2, "p");
  for (int i = 0; i < 100; ++i) device.Fill(p, i, 1, b);
  device.Fill(p + 1, 5, 1, a);
  EXPECT_EQ(static_cast<int>(p[1]), 0x7b);
  device.Synchronize(a);
  EXPECT_EQ(static_cast<int>(p[1]), 5);
  EXPECT_NE(static_cast<int>(p[0]), 99);
  device.Synchronize(b);
  EXPECT_EQ(static_cast<int>(p[0]), 99);
}

}  // namespace
}  // namespace shardc::testing
