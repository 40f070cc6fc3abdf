// That the recording device finds what a test of the executor counts on it to find.
#include "tests/runtime/fake_device.h"

#include <gmock/gmock.h>

#include <atomic>
#include <functional>
#include <set>
#include <string>
#include <thread>

#include "ir/diagnostic.h"

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

// Two streams and an event, as the executor has them.
struct Streams {
  FakeDevice device;
  cuda::Stream a = device.MakeStream(false), b = device.MakeStream(false);
  cuda::Event fork = device.MakeEvent(), join = device.MakeEvent();
  std::byte* p = device.Allocate(8, "p");
  std::byte* pinned = device.AllocateHost(8, "pinned");

  void Fork() {
    device.Record(fork, a);
    device.Wait(b, fork);
  }
  void Join() {
    device.Record(join, b);
    device.Wait(a, join);
  }
};

// What `body` is told when it runs inside a capture of stream a.
std::string RefusedInCapture(const std::function<void(Streams&)>& body) {
  Streams s;
  s.device.BeginCapture(s.a);
  try {
    body(s);
    s.device.EndCapture(s.a);
  } catch (const InternalError& e) {
    return e.what();
  }
  return "nothing";
}

TEST(FakeDevice, RefusesInACaptureWhatCudaRefuses) {
  using ::testing::HasSubstr;
  EXPECT_EQ(RefusedInCapture([](Streams& s) {
              s.Fork();
              s.device.CopyOut(s.pinned, s.p, 8, s.b);
              s.Join();
            }),
            "nothing");
  EXPECT_THAT(RefusedInCapture([](Streams& s) { s.Fork(), s.device.Fill(s.p, 0, 8, s.b); }),
              HasSubstr("has not joined"));
  EXPECT_THAT(RefusedInCapture([](Streams& s) { s.device.Fill(s.p, 0, 8, s.b); }),
              HasSubstr("not joined the capture"));
  EXPECT_THAT(RefusedInCapture([](Streams& s) { s.device.Synchronize(s.a); }),
              HasSubstr("the host waits"));
  EXPECT_THAT(RefusedInCapture([](Streams& s) { s.device.Done(s.a); }), HasSubstr("the host asks"));
  EXPECT_THAT(RefusedInCapture([](Streams& s) { s.device.Allocate(1, "x"); }),
              HasSubstr("allocation"));
  EXPECT_THAT(RefusedInCapture([](Streams& s) { s.device.BeginCapture(s.b); }),
              HasSubstr("inside a capture"));
  EXPECT_THAT(RefusedInCapture([](Streams& s) { s.device.EndCapture(s.b); }),
              HasSubstr("on another stream"));
  EXPECT_THAT(RefusedInCapture([](Streams& s) {
                std::byte pageable[8];
                s.device.CopyOut(pageable, s.p, 8, s.a);
              }),
              HasSubstr("pageable"));
  EXPECT_THAT(RefusedInCapture([](Streams& s) {
                std::thread([&] {
                  s.device.Activate();
                  EXPECT_THROW(s.device.EndCapture(s.a), InternalError);
                }).join();
                s.device.Wait(s.a, s.join);
              }),
              HasSubstr("nobody recorded"));
}

// Events stand for work outside of captures or of one capture.
TEST(FakeDevice, RefusesEventsAcrossTheEdgeOfACapture) {
  Streams s;
  s.device.Record(s.fork, s.a);
  s.device.BeginCapture(s.a);
  EXPECT_THROW(s.device.Wait(s.a, s.fork), InternalError) << "of before it";
  s.device.Record(s.join, s.a);
  cuda::StepGraph graph = s.device.EndCapture(s.a);
  EXPECT_THROW(s.device.Wait(s.b, s.join), InternalError) << "of a capture that has ended";
  s.device.BeginCapture(s.b);
  EXPECT_THROW(s.device.Wait(s.b, s.join), InternalError) << "of another capture";
  s.device.AbandonCapture(s.b);
  s.device.DestroyGraph(graph);
  EXPECT_THROW(s.device.LaunchGraph(graph, s.a), InternalError);
}

TEST(FakeDevice, RefusesTheTimeOfEventsThatHaveNone) {
  Streams s;
  s.device.Defer(1);
  cuda::Event timed = s.device.MakeTimedEvent(), late = s.device.MakeTimedEvent();
  s.device.Record(s.fork, s.a);
  EXPECT_THROW(s.device.Milliseconds(s.fork, s.fork), InternalError) << "not made for it";
  EXPECT_THROW(s.device.Milliseconds(timed, timed), InternalError) << "not recorded";
  s.device.Record(timed, s.a);
  s.device.Fill(s.p, 0, 8, s.a);
  s.device.Record(late, s.a);
  EXPECT_THROW(s.device.Milliseconds(timed, late), InternalError) << "still to come";
  s.device.Synchronize(s.a);
  EXPECT_EQ(s.device.Milliseconds(timed, late), 1);
}

TEST(FakeDevice, RefusesAThreadWhoseDeviceIsAnother) {
  FakeDevice first;
  cuda::Stream s = first.MakeStream(false);
  FakeDevice second;
  EXPECT_THROW(first.Allocate(1, "x"), InternalError);
  EXPECT_THROW(first.Synchronize(s), InternalError);
  first.Activate();
  first.Synchronize(s);
}

TEST(FakeDevice, AThreadOfItsOwnDoesTheWorkInOrder) {
  FakeDevice device;
  device.RunAlongside();
  cuda::Stream s = device.MakeStream(false);
  std::atomic<bool> may{false};
  std::atomic<int> done{0};
  device.Enqueue("waits", s, {}, [&] {
    while (!may) std::this_thread::yield();
    done = 1;
  });
  device.Enqueue("after it", s, {}, [&] { done = done * 10 + 2; });
  EXPECT_FALSE(device.Done(s));
  may = true;
  device.Synchronize(s);
  EXPECT_TRUE(device.Done(s));
  EXPECT_EQ(done, 12);
  device.Enqueue("fails", s, {}, [] { throw std::runtime_error("a kernel's failure"); });
  EXPECT_THROW(device.Synchronize(s), std::runtime_error);
}

}  // namespace
}  // namespace shardc::testing
