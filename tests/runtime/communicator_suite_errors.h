// What happens when ranks fail, leave or disagree; included by communicator_suite.h.
#pragma once

namespace shardc {

TEST_P(CommunicatorSuite, MismatchOfKind) {
  for (int64_t count : {1, 100000}) {
    for (int n : {2, 5, 8}) {
      if (!CanMake(n)) continue;
      ExpectMismatch(
          n,
          [&](Communicator& c) {
            std::vector<float> x(count), y(count * n);
            if (c.rank() == n - 1) {
              c.AllGather(x.data(), y.data(), count, DType::kF32);
            } else {
              c.AllReduce(x.data(), x.data(), count, DType::kF32, ReduceOp::kSum);
            }
          },
          {"rank 0 calls all_reduce(sum) of " + std::to_string(count) + " f32",
           "rank " + std::to_string(n - 1) + " calls all_gather of " + std::to_string(count)});
    }
  }
}

TEST_P(CommunicatorSuite, MismatchOfCount) {
  for (int64_t extra : {1, 100000}) {  // the second: one rank thinks it small, one large
    ExpectMismatch(
        2,
        [&](Communicator& c) {
          const int64_t count = 3 + c.rank() * extra;
          std::vector<float> x(count);
          c.AllReduce(x.data(), x.data(), count, DType::kF32, ReduceOp::kSum);
        },
        {"rank 0 calls all_reduce(sum) of 3 f32", "rank 1 calls", std::to_string(3 + extra)});
  }
}

TEST_P(CommunicatorSuite, MismatchOfDType) {
  ExpectMismatch(
      4,
      [&](Communicator& c) {
        std::array<int32_t, 4> x{};
        const DType dtype = c.rank() == 2 ? DType::kI32 : DType::kF32;
        c.AllReduce(x.data(), x.data(), 4, dtype, ReduceOp::kSum);
      },
      {"rank 0 calls all_reduce(sum) of 4 f32", "rank 2 calls all_reduce(sum) of 4 i32"});
}

TEST_P(CommunicatorSuite, MismatchOfOp) {
  ExpectMismatch(3,
                 [&](Communicator& c) {
                   float x = 0;
                   c.AllReduce(&x, &x, 1, DType::kF32,
                               c.rank() == 1 ? ReduceOp::kMax : ReduceOp::kSum);
                 },
                 {"all_reduce(sum)", "rank 1 calls all_reduce(max)"});
}

TEST_P(CommunicatorSuite, MismatchOfRoot) {
  ExpectMismatch(3,
                 [&](Communicator& c) {
                   float x = 0;
                   c.Broadcast(&x, 1, DType::kF32, c.rank() == 2 ? 1 : 0);
                 },
                 {"rank 0 calls broadcast(root 0)", "rank 2 calls broadcast(root 1)"});
}

TEST_P(CommunicatorSuite, MismatchInsideAList) {
  ExpectMismatch(2,
                 [&](Communicator& c) {
                   std::array<float, 8> x{};
                   std::vector<Buffers> list = {{&x[0], &x[0], 1, DType::kF32},
                                                {&x[1], &x[1], 2 + c.rank(), DType::kF32}};
                   c.AllReduce(list, ReduceOp::kSum);
                 },
                 {"buffer 1: 2 f32 and 3 f32"});
  ExpectMismatch(2,
                 [&](Communicator& c) {
                   std::array<float, 8> x{};
                   std::vector<Buffers> list(2 + c.rank(), {&x[0], &x[0], 1, DType::kF32});
                   c.AllReduce(list, ReduceOp::kSum);
                 },
                 {"of 2 buffers", "of 3 buffers"});
}

TEST_P(CommunicatorSuite, MismatchOfSplitAndBarrier) {
  ExpectMismatch(2,
                 [&](Communicator& c) {
                   if (c.rank() == 0) {
                     c.Split(0, 0);
                   } else {
                     c.Barrier();
                   }
                 },
                 {"rank 0 calls split", "rank 1 calls barrier"});
}

// In how many elements they are of, or in their type alone.
TEST_P(CommunicatorSuite, MismatchOfMessages) {
  const std::pair<int64_t, DType> kWanted[] = {{3, DType::kF32}, {4, DType::kI32}};
  for (const auto& [count, dtype] : kWanted) {
    ExpectMismatch(2,
                   [&](Communicator& c) {
                     std::array<float, 4> x{};
                     if (c.rank() == 0) {
                       c.Send(x.data(), 4, DType::kF32, 1);
                     } else {
                       c.Recv(x.data(), count, dtype, 0);
                     }
                   },
                   {"rank 1 calls recv of " + std::to_string(count) + " " +
                        std::string(DTypeName(dtype)) + " from rank 0",
                    "rank 0 calls send of 4 f32 to rank 1"});
  }
}

TEST_P(CommunicatorSuite, MismatchOfABegunSend) {
  for (int64_t count : {4, 100000}) {
    ExpectMismatch(2,
                   [&](Communicator& c) {
                     std::vector<float> x(count);
                     if (c.rank() == 0) {
                       c.FinishSend(c.BeginSend(
                           {Transfer::Kind::kSend, 1, x.data(), nullptr, count, DType::kF32}));
                     } else {
                       c.Recv(x.data(), 3, DType::kF32, 0);
                     }
                   },
                   {"rank 1 calls recv of 3 f32 from rank 0",
                    "rank 0 calls send of " + std::to_string(count) + " f32 to rank 1"});
    ExpectMismatch(2,
                   [&](Communicator& c) {
                     std::vector<float> x(count);
                     if (c.rank() == 0) {
                       c.FinishSend(c.BeginSend(
                           {Transfer::Kind::kSend, 1, x.data(), nullptr, count, DType::kF32}));
                     } else {
                       c.Barrier();
                     }
                   },
                   {"rank 0 calls send of " + std::to_string(count) + " f32 to rank 1",
                    "rank 1 calls barrier"});
  }
}

// Whoever comes first: the one that waits for the message, or the one in the collective.
TEST_P(CommunicatorSuite, MismatchOfMessageAndCollective) {
  for (int late : {0, 1}) {
    for (bool send : {false, true}) {
      ExpectMismatch(2,
                     [&](Communicator& c) {
                       if (c.rank() == late)
                         std::this_thread::sleep_for(std::chrono::milliseconds(20));
                       float x = 0;
                       if (c.rank() == 0) {
                         c.AllReduce(&x, &x, 1, DType::kF32, ReduceOp::kSum);
                       } else if (send) {
                         c.Send(&x, 1, DType::kF32, 0);
                       } else {
                         c.Recv(&x, 1, DType::kF32, 0);
                       }
                     },
                     {"rank 1 calls " + std::string(send ? "send" : "recv") + " of 1 f32",
                      "rank 0 calls all_reduce(sum) of 1 f32"});
    }
  }
}

// Messages before and after collectives, with ranks out of step, are no mismatch.
TEST_P(CommunicatorSuite, MessagesBetweenCollectives) {
  SHARDC_NEEDS_RANKS(3);
  RunRanksOk(Make(3), [&](Communicator& c) {
    for (int i = 0; i < 2000; ++i) {
      int32_t x = i;
      if (c.rank() == 0) c.Send(&x, 1, DType::kI32, 1);
      if (c.rank() == 1) c.Recv(&x, 1, DType::kI32, 0);
      if (c.rank() == 1) c.Send(&x, 1, DType::kI32, 2);
      if (c.rank() == 2) c.Recv(&x, 1, DType::kI32, 1);
      c.AllReduce(&x, &x, 1, DType::kI32, ReduceOp::kSum);
      ASSERT_EQ(x, 3 * i);
    }
  });
}

TEST_P(CommunicatorSuite, WrongArguments) {
  SHARDC_NEEDS_RANKS(2);
  auto rejects = [&](const char* what, auto&& call) {
    const auto errors = RunRanks(
        Make(2), [&](Communicator& c) { EXPECT_THROW(call(c), std::invalid_argument) << what; });
    for (const auto& error : errors) EXPECT_EQ(ErrorText(error), "no error");
  };
  float x[8] = {};
  const DType f32 = DType::kF32;
  const ReduceOp sum = ReduceOp::kSum;
  rejects("negative count", [&](Communicator& c) { c.AllReduce(x, x, -1, f32, sum); });
  rejects("null send", [&](Communicator& c) { c.AllReduce(nullptr, x, 1, f32, sum); });
  rejects("null recv", [&](Communicator& c) { c.AllGather(x, nullptr, 1, f32); });
  rejects("overlap", [&](Communicator& c) { c.AllReduce(x, x + 1, 4, f32, sum); });
  rejects("wrong place", [&](Communicator& c) { c.AllGather(x + 1 - c.rank(), x, 1, f32); });
  rejects("all_to_all in place", [&](Communicator& c) { c.AllToAll(x, x, 1, f32); });
  rejects("bool sum", [&](Communicator& c) { c.AllReduce(x, x, 1, DType::kBool, sum); });
  rejects("root", [&](Communicator& c) { c.Broadcast(x, 1, f32, 2); });
  rejects("negative root", [&](Communicator& c) { c.Broadcast(x, 1, f32, -1); });
  rejects("peer", [&](Communicator& c) { c.Send(x, 1, f32, 2); });
  rejects("own rank", [&](Communicator& c) { c.Recv(x, 1, f32, c.rank()); });
  rejects("begun receive", [&](Communicator& c) {
    c.BeginSend({Transfer::Kind::kRecv, 1 - c.rank(), nullptr, x, 1, f32});
  });
  rejects("peer of a begun send", [&](Communicator& c) {
    c.BeginSend({Transfer::Kind::kSend, 2, x, nullptr, 1, f32});
  });
  rejects("negative count of a message",
          [&](Communicator& c) { c.Send(x, -1, f32, 1 - c.rank()); });
  rejects("null message", [&](Communicator& c) { c.Recv(nullptr, 1, f32, 1 - c.rank()); });
}

TEST_P(CommunicatorSuite, WrongArgumentOnOneRankFreesTheOthers) {
  SHARDC_NEEDS_RANKS(3);
  const auto errors = RunRanks(Make(3), [&](Communicator& c) {
    float x = 0;
    c.AllReduce(&x, &x, c.rank() == 1 ? -1 : 1, DType::kF32, ReduceOp::kSum);
  });
  EXPECT_NE(ErrorText(errors[1]).find("count is -1"), std::string::npos);
  EXPECT_NE(ErrorText(errors[0]).find("rank 1 aborted"), std::string::npos);
  EXPECT_NE(ErrorText(errors[2]).find("count is -1"), std::string::npos);
}

using Wait = std::function<void(Communicator& world, Communicator& group, float* data)>;

// The ways to wait for rank 3 of 4, directly or in a group that it is not even in.
inline std::vector<std::pair<std::string, Wait>> WaysToWait() {
  constexpr int64_t kLarge = 100000;
  const DType f32 = DType::kF32;
  return {
      {"barrier", [](Communicator& w, Communicator&, float*) { w.Barrier(); }},
      {"small all_reduce", [=](Communicator& w, Communicator&,
                               float* x) { w.AllReduce(x, x, 1, f32, ReduceOp::kSum); }},
      {"large all_reduce", [=](Communicator& w, Communicator&,
                               float* x) { w.AllReduce(x, x, kLarge, f32, ReduceOp::kSum); }},
      {"split", [](Communicator& w, Communicator&, float*) { w.Split(0, 0); }},
      {"recv", [=](Communicator& w, Communicator&, float* x) { w.Recv(x, 1, f32, 3); }},
      {"send", [=](Communicator& w, Communicator&, float* x) { w.Send(x, kLarge, f32, 3); }},
      {"begun send",
       [=](Communicator& w, Communicator&, float* x) {
         w.FinishSend(w.BeginSend({Transfer::Kind::kSend, 3, x, nullptr, kLarge, f32}));
       }},
      {"group",  // ranks 0, 1, 2: two wait for the third, which waits for rank 3
       [](Communicator& w, Communicator& g, float*) {
         if (g.rank() == 2) w.Barrier();
         g.Barrier();
       }},
  };
}

// `fail` is run on rank 3 while the others wait; expects all to throw Aborted that names it, with
// `reason`, then and later, within a bounded time.
template <typename Fail>
void ExpectAllAborted(const WorldMaker& maker, const std::string& reason,
                      bool expect_flag_everywhere, const Fail& fail) {
  for (const auto& [name, wait] : WaysToWait()) {
    // Where rank 3 is in another process this stays the time before.
    const OwnTime time;
    double failed = 0;
    const auto errors = RunRanks(maker.make(4), [&](Communicator& c) {
      const auto group = c.Split(c.rank() == 3 ? 1 : 0, 0);
      c.Barrier();
      if (c.rank() == 3) {
        std::this_thread::sleep_for(maker.settle);
        failed = time.seconds();
        fail(c);
        return;
      }
      std::vector<float> data(100000);
      auto expect_aborted = [&](auto&& call) {
        try {
          call();
          ADD_FAILURE() << name << ": rank " << c.rank() << " was not told";
        } catch (const Aborted& e) {
          EXPECT_EQ(e.rank(), 3) << name;
          EXPECT_NE(e.reason().find(reason), std::string::npos) << name << ": " << e.reason();
        }
      };
      expect_aborted([&] { wait(c, *group, data.data()); });
      if (!expect_flag_everywhere) return;
      expect_aborted([&] { group->Barrier(); });
      expect_aborted(
          [&] { c.AllReduce(data.data(), data.data(), 1, DType::kF32, ReduceOp::kSum); });
      expect_aborted([&] { c.Send(data.data(), 1, DType::kF32, (c.rank() + 1) % 3); });
    });
    EXPECT_LT(time.seconds() - failed, 5) << name;
    for (int r = 0; r < 3; ++r) EXPECT_EQ(ErrorText(errors[r]), "no error") << name;
  }
}

TEST_P(CommunicatorSuite, AbortWakesEverybody) {
  SHARDC_NEEDS_RANKS(4);
  ExpectAllAborted(GetParam(), "matmul: no memory", true,
                   [](Communicator& c) { c.Abort("matmul: no memory"); });
}

TEST_P(CommunicatorSuite, ExceptionThatUnwindsACommunicatorWakesEverybody) {
  SHARDC_NEEDS_RANKS(4);
  ExpectAllAborted(GetParam(), "exception", true,
                   [](Communicator&) { throw std::runtime_error("some kernel failed"); });
}

TEST_P(CommunicatorSuite, LeavingInPeaceFreesThoseThatWait) {
  SHARDC_NEEDS_RANKS(4);
  ExpectAllAborted(GetParam(), "left", false, [](Communicator&) {});
}

TEST_P(CommunicatorSuite, LeavingAfterTheLastCallDisturbsNobody) {
  SHARDC_NEEDS_RANKS(4);
  for (int round = 0; round < 200; ++round) {
    RunRanksOk(Make(4), [&](Communicator& c) {
      const auto group = c.Split(c.rank() % 2, 0);
      std::vector<int32_t> x(round % 2 == 0 ? 3 : 5000, c.rank());
      group->AllReduce(x.data(), x.data(), x.size(), DType::kI32, ReduceOp::kSum);
      EXPECT_EQ(x.back(), c.rank() % 2 == 0 ? 2 : 4);
      // Ranks 0 and 1 are gone while 2 and 3 still talk.
      if (c.rank() == 2) c.Send(x.data(), 1, DType::kI32, 3);
      if (c.rank() == 3) c.Recv(x.data(), 1, DType::kI32, 2);
    });
  }
}

TEST_P(CommunicatorSuite, FirstReasonWins) {
  SHARDC_NEEDS_RANKS(3);
  const auto errors = RunRanks(Make(3), [&](Communicator& c) {
    if (c.rank() == 0) {
      c.Abort("the first");
      c.Abort("the second");
    }
    c.Barrier();
  });
  for (const auto& e : errors) EXPECT_EQ(ErrorText(e), "Aborted: rank 0 aborted: the first");
}

TEST_P(CommunicatorSuite, PollTellsOfAFailureWithoutACall) {
  SHARDC_NEEDS_RANKS(4);
  const auto errors = RunRanks(Make(4), [&](Communicator& c) {
    const auto group = c.Split(c.rank() / 2, 0);
    c.Poll();
    group->Poll();
    c.Barrier();
    if (c.rank() == 3) c.Abort("enough");
    for (;;) {
      group->Poll();
      std::this_thread::yield();
    }
  });
  for (const auto& e : errors) EXPECT_EQ(ErrorText(e), "Aborted: rank 3 aborted: enough");
}

// Another group's abort must not free a rank while its peers still use its buffers. (The sanitizers
// see it if one does.)
TEST_P(CommunicatorSuite, AbortInTheMiddleOfLargeCalls) {
  SHARDC_NEEDS_RANKS(4);
  for (int round = 0; round < 60; ++round) {
    const auto errors = RunRanks(Make(4), [&](Communicator& c) {
      const auto group = c.Split(c.rank() == 3 ? 1 : 0, 0);
      if (c.rank() == 3) {
        std::this_thread::sleep_for(std::chrono::microseconds(round * 40));
        c.Abort("now");
        return;
      }
      for (;;) {
        std::vector<float> x(30000, 1.0f), y(30000);
        group->AllReduce(x.data(), x.data(), 30000, DType::kF32, ReduceOp::kSum);
        for (float v : x) ASSERT_EQ(v, 3.0f);
        const int next = (group->rank() + 1) % 3, previous = (group->rank() + 2) % 3;
        const std::array<Transfer, 2> ring = {
            Transfer{Transfer::Kind::kSend, next, x.data(), nullptr, 30000, DType::kF32},
            Transfer{Transfer::Kind::kRecv, previous, nullptr, y.data(), 30000, DType::kF32}};
        group->Exchange(ring);
        for (float v : y) ASSERT_EQ(v, 3.0f);
        const int64_t ticket = group->BeginSend(ring[0]);
        group->Exchange({&ring[1], 1});
        group->FinishSend(ticket);
      }
    });
    for (int r = 0; r < 3; ++r) EXPECT_EQ(ErrorText(errors[r]), "Aborted: rank 3 aborted: now");
  }
}

}  // namespace shardc
