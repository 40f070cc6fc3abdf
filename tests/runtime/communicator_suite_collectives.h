// Results of every call; included by communicator_suite.h.
#pragma once

namespace shardc {

// Calls check(dtype, count) for all dtypes and counts; large counts are divided by `divisor`, and
// only for two dtypes, to keep the time and memory of the sanitizers in bounds.
template <typename Check>
void ForEachCase(int divisor, const Check& check) {
  for (DType dtype : kAllDTypes) {
    for (int64_t count : kCounts) {
      if (count > 5000 && dtype != DType::kF32 && dtype != DType::kBF16) continue;
      check(dtype, count > 5000 ? count / divisor : count);
    }
  }
}

TEST_P(CommunicatorSuite, RankAndSize) {
  for (int n = 1; n <= GetParam().max_ranks; ++n) {
    World world = Make(n);
    ASSERT_EQ(world.size(), static_cast<size_t>(n));
    for (int r = 0; r < n; ++r) {
      if (!world[r]) continue;
      EXPECT_EQ(world[r]->rank(), r);
      EXPECT_EQ(world[r]->size(), n);
    }
  }
}

TEST_P(CommunicatorSuite, AllReduce) {
  for (int n = 1; n <= GetParam().max_ranks; ++n) {
    ForEachCase(1, [&](DType dtype, int64_t count) {
      if (count > 5000 && n > 3 && n < GetParam().max_ranks) return;
      const auto inputs = RandomRanks(dtype, count, n, n);
      for (ReduceOp op : LegalOps(dtype)) {
        if (count > 5000 && op != ReduceOp::kSum) continue;
        const Bytes expected = ReduceSerially(dtype, op, inputs);
        RunRanksOk(Make(n), [&](Communicator& c) {
          const Bytes& mine = inputs[c.rank()];
          Bytes out(mine.size());
          c.AllReduce(mine.data(), out.data(), count, dtype, op);
          EXPECT_TRUE(out == expected) << CaseName(n, dtype, count);
          Bytes in_place = mine;
          c.AllReduce(in_place.data(), in_place.data(), count, dtype, op);
          EXPECT_TRUE(in_place == expected) << "in place, " << CaseName(n, dtype, count);
        });
      }
    });
  }
}

// As an arena may place them.
TEST_P(CommunicatorSuite, BuffersMayTouch) {
  RunRanksOk(Make(2), [](Communicator& c) {
    float x[12];
    for (int first : {0, 4}) {
      const float* send = x + first;
      float* recv = x + (first == 0 ? 4 : 0);
      for (int i = 0; i < 4; ++i) x[first + i] = static_cast<float>(c.rank() + 2 * i);
      c.AllReduce(send, recv, 4, DType::kF32, ReduceOp::kSum);
      for (int i = 0; i < 4; ++i) EXPECT_EQ(recv[i], 1 + 4 * i);
    }
    x[8] = static_cast<float>(c.rank());
    c.AllGather(x + 8, x + 9, 1, DType::kF32);
    EXPECT_EQ(x[9] + 2 * x[10], 2);
    c.AllGather(x + 8, x + 6, 1, DType::kF32);
    EXPECT_EQ(x[6] + 2 * x[7], 2);
  });
}

TEST_P(CommunicatorSuite, ReduceScatter) {
  for (int n = 1; n <= GetParam().max_ranks; ++n) {
    ForEachCase(n, [&](DType dtype, int64_t count) {
      const auto inputs = RandomRanks(dtype, count * n, n, n);
      for (ReduceOp op : LegalOps(dtype)) {
        if (count > 5000 && op != ReduceOp::kSum) continue;
        const Bytes whole = ReduceSerially(dtype, op, inputs);
        RunRanksOk(Make(n), [&](Communicator& c) {
          const int64_t bytes = count * DTypeSize(dtype);
          const Bytes expected = Slice(whole, c.rank() * bytes, bytes);
          Bytes out(bytes);
          c.ReduceScatter(inputs[c.rank()].data(), out.data(), count, dtype, op);
          EXPECT_TRUE(out == expected) << CaseName(n, dtype, count);
          Bytes in_place = inputs[c.rank()];
          std::byte* part = in_place.data() + c.rank() * bytes;
          c.ReduceScatter(in_place.data(), part, count, dtype, op);
          EXPECT_TRUE(Slice(in_place, c.rank() * bytes, bytes) == expected)
              << "in place, " << CaseName(n, dtype, count);
        });
      }
    });
  }
}

TEST_P(CommunicatorSuite, AllGather) {
  for (int n = 1; n <= GetParam().max_ranks; ++n) {
    ForEachCase(n, [&](DType dtype, int64_t count) {
      const auto inputs = RandomRanks(dtype, count, n, n);
      Bytes expected;
      for (const Bytes& b : inputs) expected.insert(expected.end(), b.begin(), b.end());
      RunRanksOk(Make(n), [&](Communicator& c) {
        const Bytes& mine = inputs[c.rank()];
        Bytes out(expected.size());
        c.AllGather(mine.data(), out.data(), count, dtype);
        EXPECT_TRUE(out == expected) << CaseName(n, dtype, count);
        Bytes in_place(expected.size());
        std::byte* part = in_place.data() + c.rank() * mine.size();
        std::copy(mine.begin(), mine.end(), part);
        c.AllGather(part, in_place.data(), count, dtype);
        EXPECT_TRUE(in_place == expected) << "in place, " << CaseName(n, dtype, count);
      });
    });
  }
}

TEST_P(CommunicatorSuite, AllToAll) {
  for (int n = 1; n <= GetParam().max_ranks; ++n) {
    ForEachCase(n * n, [&](DType dtype, int64_t count) {
      const auto inputs = RandomRanks(dtype, count * n, n, n);
      RunRanksOk(Make(n), [&](Communicator& c) {
        const int64_t bytes = count * DTypeSize(dtype);
        Bytes expected;
        for (const Bytes& b : inputs) {
          const Bytes part = Slice(b, c.rank() * bytes, bytes);
          expected.insert(expected.end(), part.begin(), part.end());
        }
        Bytes out(bytes * n);
        c.AllToAll(inputs[c.rank()].data(), out.data(), count, dtype);
        EXPECT_TRUE(out == expected) << CaseName(n, dtype, count);
      });
    });
  }
}

TEST_P(CommunicatorSuite, BroadcastFromEveryRoot) {
  for (int n = 1; n <= GetParam().max_ranks; ++n) {
    ForEachCase(n, [&](DType dtype, int64_t count) {
      const auto inputs = RandomRanks(dtype, count, n, n);
      RunRanksOk(Make(n), [&](Communicator& c) {
        for (int root = 0; root < n; ++root) {
          Bytes buffer = inputs[c.rank()];
          c.Broadcast(buffer.data(), count, dtype, root);
          EXPECT_TRUE(buffer == inputs[root])
              << "root " << root << ", " << CaseName(n, dtype, count);
        }
      });
    });
  }
}

TEST_P(CommunicatorSuite, BarrierHoldsEverybody) {
  for (int n = 1; n <= GetParam().max_ranks; ++n) {
    const auto counter = GetParam().counter();
    std::atomic<int>& arrived = *counter;
    RunRanksOk(Make(n), [&](Communicator& c) {
      for (int round = 1; round <= 100; ++round) {
        ++arrived;
        c.Barrier();
        EXPECT_GE(arrived.load(), round * n);
        c.Barrier();
      }
    });
  }
}

// A list gives the same bits as one call per buffer, whether it is small or large in all.
TEST_P(CommunicatorSuite, GroupedCallsEqualSingleCalls) {
  const std::vector<std::vector<int64_t>> lists = {
      {}, {0}, {1, 3, 5}, {0, 17, 0, 256}, {1, 100003, 7, 4096, 0, 33333, 2}, {5000, 5000, 5000}};
  for (int n : {1, 2, 3, 8}) {
    if (!CanMake(n)) continue;
    for (const auto& counts : lists) {
      RunRanksOk(Make(n), [&](Communicator& c) {
        std::vector<Bytes> whole, part, grouped, single;
        std::vector<Buffers> to_whole, to_part, pairwise;  // recv is n times, 1 times send; equal
        for (size_t i = 0; i < counts.size(); ++i) {
          const DType dtype = kAllDTypes[i % (kAllDTypes.size() - 1)];  // no bool: it has no sum
          whole.push_back(RandomElements(dtype, counts[i] * n, i, c.rank()));
          grouped.emplace_back(whole[i].size());
          single.emplace_back(whole[i].size());
          const Buffers b{whole[i].data(), grouped[i].data(), counts[i], dtype};
          to_whole.push_back(b);
          to_part.push_back(b);
          pairwise.push_back(b);
        }
        auto same = [&](const char* what, auto&& call_grouped, auto&& call_single) {
          for (auto* results : {&grouped, &single}) {
            for (Bytes& b : *results) std::fill(b.begin(), b.end(), std::byte{0});
          }
          call_grouped();
          for (size_t i = 0; i < counts.size(); ++i) {
            call_single(to_whole[i], single[i].data());
            EXPECT_TRUE(grouped[i] == single[i]) << what << " buffer " << i << " on " << n;
          }
        };
        const ReduceOp sum = ReduceOp::kSum;
        same(
            "all_reduce", [&] { c.AllReduce(pairwise, sum); },
            [&](const Buffers& b, void* out) { c.AllReduce(b.send, out, b.count, b.dtype, sum); });
        same(
            "all_gather", [&] { c.AllGather(to_whole); },
            [&](const Buffers& b, void* out) { c.AllGather(b.send, out, b.count, b.dtype); });
        same(
            "reduce_scatter", [&] { c.ReduceScatter(to_part, sum); },
            [&](const Buffers& b, void* out) {
              c.ReduceScatter(b.send, out, b.count, b.dtype, sum);
            });
        same(
            "all_to_all", [&] { c.AllToAll(pairwise); },
            [&](const Buffers& b, void* out) { c.AllToAll(b.send, out, b.count, b.dtype); });
      });
    }
  }
}

TEST_P(CommunicatorSuite, NaNWins) {
  SHARDC_NEEDS_RANKS(3);
  RunRanksOk(Make(3), [&](Communicator& c) {
    // One NaN in each rank's own place, and a place without.
    for (ReduceOp op : LegalOps(DType::kF32)) {
      std::vector<float> x = {1, 2, 3, static_cast<float>(c.rank())};
      x[c.rank()] = std::nanf("");
      c.AllReduce(x.data(), x.data(), 4, DType::kF32, op);
      for (int i = 0; i < 3; ++i) EXPECT_TRUE(std::isnan(x[i])) << i;
      EXPECT_FALSE(std::isnan(x[3]));
    }
  });
}

TEST_P(CommunicatorSuite, IntegerSumsWrap) {
  SHARDC_NEEDS_RANKS(2);
  RunRanksOk(Make(2), [&](Communicator& c) {
    int64_t x = std::numeric_limits<int64_t>::max();
    c.AllReduce(&x, &x, 1, DType::kI64, ReduceOp::kSum);
    EXPECT_EQ(x, -2);
  });
}

// 4096 + 1 + 1 + ... : a bf16 accumulator would never leave 4096.
TEST_P(CommunicatorSuite, HalvesAccumulateInF32) {
  SHARDC_NEEDS_RANKS(8);
  RunRanksOk(Make(8), [&](Communicator& c) {
    uint16_t x = BF16Bits(c.rank() == 0 ? 4096.0f : 8.0f);
    c.AllReduce(&x, &x, 1, DType::kBF16, ReduceOp::kSum);
    EXPECT_EQ(BF16Value(x), 4160.0f);
    x = F16Bits(c.rank() == 0 ? 4096.0f : 1.0f);
    c.AllReduce(&x, &x, 1, DType::kF16, ReduceOp::kSum);
    EXPECT_EQ(F16Value(x), 4104.0f);
  });
}

TEST_P(CommunicatorSuite, SameBitsInEveryRun) {
  SHARDC_NEEDS_RANKS(8);
  constexpr int kRanks = 8, kCount = 20011;
  const auto inputs = RandomRanks(DType::kF32, kCount, 5, kRanks);
  const Bytes expected = ReduceSerially(DType::kF32, ReduceOp::kSum, inputs);
  for (int run = 0; run < 20; ++run) {
    RunRanksOk(Make(kRanks), [&](Communicator& c) {
      std::this_thread::sleep_for(std::chrono::microseconds(Mix(run, c.rank()) % 500));
      Bytes out(expected.size());
      c.AllReduce(inputs[c.rank()].data(), out.data(), kCount, DType::kF32, ReduceOp::kSum);
      EXPECT_TRUE(out == expected);
    });
  }
}

TEST_P(CommunicatorSuite, SplitIntoTensorAndDataParallelGroups) {
  SHARDC_NEEDS_RANKS(8);
  RunRanksOk(Make(8), [&](Communicator& c) {
    const int r = c.rank();
    const auto tp = c.Split(r / 2, r);
    const auto dp = c.Split(r % 2, r);
    ASSERT_EQ(tp->size(), 2);
    ASSERT_EQ(tp->rank(), r % 2);
    ASSERT_EQ(dp->size(), 4);
    ASSERT_EQ(dp->rank(), r / 2);
    for (int round = 0; round < 50; ++round) {
      int32_t x = r, y = r;
      tp->AllReduce(&x, &x, 1, DType::kI32, ReduceOp::kSum);
      EXPECT_EQ(x, r / 2 * 4 + 1);
      dp->AllReduce(&y, &y, 1, DType::kI32, ReduceOp::kSum);
      EXPECT_EQ(y, r % 2 == 0 ? 12 : 16);
      std::array<int32_t, 4> all{};
      dp->AllGather(&r, all.data(), 1, DType::kI32);
      for (int i = 0; i < 4; ++i) EXPECT_EQ(all[i], 2 * i + r % 2);
    }
    c.Barrier();
  });
}

TEST_P(CommunicatorSuite, SplitOrdersByKeyThenRankAndNests) {
  SHARDC_NEEDS_RANKS(6);
  RunRanksOk(Make(6), [&](Communicator& c) {
    const auto reversed = c.Split(0, -c.rank());
    EXPECT_EQ(reversed->rank(), 5 - c.rank());
    const auto same_key = c.Split(7, 0);
    EXPECT_EQ(same_key->rank(), c.rank());
    const auto some = c.Split(c.rank() < 4 ? 1 : -1, 0);
    ASSERT_EQ(some != nullptr, c.rank() < 4);
    if (some) {
      const auto pair = some->Split(some->rank() % 2, 0);
      int32_t x = 1 << c.rank();
      pair->AllReduce(&x, &x, 1, DType::kI32, ReduceOp::kSum);
      EXPECT_EQ(x, c.rank() % 2 == 0 ? 0b0101 : 0b1010);
    }
    c.Barrier();
  });
}

TEST_P(CommunicatorSuite, SendAndRecvDownAPipeline) {
  SHARDC_NEEDS_RANKS(4);
  for (int64_t count : {0, 1, 3, 1000003}) {
    RunRanksOk(Make(4), [&](Communicator& c) {
      for (int step = 0; step < 3; ++step) {
        Bytes x = RandomElements(DType::kF32, count, step, 0);
        const Bytes expected = x;
        if (c.rank() > 0) {
          std::fill(x.begin(), x.end(), std::byte{0});
          c.Recv(x.data(), count, DType::kF32, c.rank() - 1);
        }
        EXPECT_TRUE(x == expected);
        if (c.rank() + 1 < c.size()) c.Send(x.data(), count, DType::kF32, c.rank() + 1);
      }
    });
  }
}

TEST_P(CommunicatorSuite, ExchangeAroundARing) {
  for (int n : {2, 3, 8}) {
    if (!CanMake(n)) continue;
    RunRanksOk(Make(n), [&](Communicator& c) {
      const int next = (c.rank() + 1) % n, previous = (c.rank() + n - 1) % n;
      for (int64_t round = 0; round < 200; ++round) {
        // Two messages each way on each channel, which must keep their order.
        std::array<int64_t, 4> out = {round, c.rank(), -round, -c.rank()}, in{};
        auto send = [&](int i, int peer) {
          return Transfer{Transfer::Kind::kSend, peer, &out[i], nullptr, 1, DType::kI64};
        };
        auto recv = [&](int i, int peer) {
          return Transfer{Transfer::Kind::kRecv, peer, nullptr, &in[i], 1, DType::kI64};
        };
        const std::array<Transfer, 8> all = {
            recv(0, previous), recv(1, previous), send(0, next), send(1, next),
            send(2, previous), send(3, previous), recv(2, next), recv(3, next)};
        c.Exchange(all);
        if (n == 2) continue;  // next is previous: checked below
        EXPECT_EQ(in, (std::array<int64_t, 4>{round, previous, -round, -next}));
      }
      if (n == 2) {
        std::array<int32_t, 3> out = {1, 2, 3}, in{};
        std::vector<Transfer> all;
        for (int i = 0; i < 3; ++i) {
          all.push_back({Transfer::Kind::kSend, next, &out[i], nullptr, 1, DType::kI32});
          all.push_back({Transfer::Kind::kRecv, next, nullptr, &in[i], 1, DType::kI32});
        }
        c.Exchange(all);
        EXPECT_EQ(in, out);
      }
      c.Exchange({});
    });
  }
}

// Small and large ones are begun while the receiver is not there; they keep their order among
// themselves and with those that are waited for.
TEST_P(CommunicatorSuite, BegunSendsDoNotWait) {
  SHARDC_NEEDS_RANKS(2);
  const auto begun = GetParam().counter();
  constexpr int32_t kMessages = 6;
  auto count = [](int i) { return i % 2 == 0 ? 5 : 300007; };
  RunRanksOk(Make(2), [&](Communicator& c) {
    std::vector<std::vector<int32_t>> x;
    for (int i = 0; i <= kMessages; ++i) x.emplace_back(count(i), c.rank() == 0 ? i + 1 : 0);
    if (c.rank() == 0) {
      std::vector<int64_t> tickets;
      for (int i = 0; i < kMessages; ++i) {
        tickets.push_back(
            c.BeginSend({Transfer::Kind::kSend, 1, x[i].data(), nullptr, count(i), DType::kI32}));
      }
      ++*begun;
      c.Send(x.back().data(), count(kMessages), DType::kI32, 1);
      // In any order.
      for (auto it = tickets.rbegin(); it != tickets.rend(); ++it) c.FinishSend(*it);
      for (auto& message : x) std::fill(message.begin(), message.end(), -1);
    } else {
      while (*begun == 0) std::this_thread::yield();
      for (int i = 0; i <= kMessages; ++i) {
        c.Recv(x[i].data(), count(i), DType::kI32, 0);
        EXPECT_EQ(x[i], std::vector<int32_t>(count(i), i + 1)) << i;
      }
    }
    c.Barrier();
  });
}

// The receiver gets all of it though the sender is in no call.
TEST_P(CommunicatorSuite, BegunSendsMoveOnWhileTheSenderComputes) {
  SHARDC_NEEDS_RANKS(2);
  const auto received = GetParam().counter();
  constexpr int64_t kCount = 3000001;
  RunRanksOk(Make(2), [&](Communicator& c) {
    for (int round = 1; round <= 3; ++round) {
      std::vector<int32_t> x(kCount, c.rank() == 0 ? round : 0);
      if (c.rank() == 0) {
        const int64_t ticket =
            c.BeginSend({Transfer::Kind::kSend, 1, x.data(), nullptr, kCount, DType::kI32});
        while (*received < round) std::this_thread::yield();
        c.FinishSend(ticket);
      } else {
        std::this_thread::sleep_for(GetParam().settle);
        c.Recv(x.data(), kCount, DType::kI32, 0);
        EXPECT_EQ(x.front(), round);
        EXPECT_EQ(x.back(), round);
        ++*received;
      }
    }
  });
}

// A ring in which each rank is a message behind, with collectives between: buffers are written
// again as soon as FinishSend lets them.
TEST_P(CommunicatorSuite, BegunSendsAcrossCollectives) {
  for (int n : {2, 3, 4}) {
    if (!CanMake(n)) continue;
    RunRanksOk(Make(n), [&](Communicator& c) {
      const int next = (c.rank() + 1) % n, previous = (c.rank() + n - 1) % n;
      std::array<std::vector<int32_t>, 2> out;
      std::array<int64_t, 2> tickets = {-1, -1};
      for (int32_t round = 0; round < 300; ++round) {
        const int64_t count = round % 7 == 0 ? 40000 : 3;
        const size_t at = round % 2;
        if (tickets[at] >= 0) c.FinishSend(tickets[at]);
        out[at].assign(count, 1000 * c.rank() + round);
        tickets[at] =
            c.BeginSend({Transfer::Kind::kSend, next, out[at].data(), nullptr, count, DType::kI32});
        std::vector<int32_t> in(count);
        c.Recv(in.data(), count, DType::kI32, previous);
        ASSERT_EQ(in, std::vector<int32_t>(count, 1000 * previous + round));
        if (round % 5 != 0) continue;
        int32_t sum = 1;
        c.AllReduce(&sum, &sum, 1, DType::kI32, ReduceOp::kSum);
        ASSERT_EQ(sum, n);
      }
      for (int64_t ticket : tickets) c.FinishSend(ticket);
    });
  }
}

TEST_P(CommunicatorSuite, ManySmallAllReducesOnMoreRanksThanCores) {
  SHARDC_NEEDS_RANKS(8);
  constexpr int kCalls = 3000;
  const auto start = std::chrono::steady_clock::now();
  RunRanksOk(Make(8), [&](Communicator& c) {
    for (int32_t i = 0; i < kCalls; ++i) {
      std::array<int32_t, 5> x = {i, c.rank(), 1, i * c.rank(), -i};
      c.AllReduce(x.data(), x.data(), 5, DType::kI32, ReduceOp::kSum);
      ASSERT_EQ(x, (std::array<int32_t, 5>{8 * i, 28, 8, 28 * i, -8 * i}));
    }
  });
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  RecordProperty("microseconds_per_call", static_cast<int>(seconds.count() * 1e6 / kCalls));
}

// A random program over the world and its groups, every result checked.
TEST_P(CommunicatorSuite, RandomProgram) {
  SHARDC_NEEDS_RANKS(4);
  constexpr int kRanks = 4;
  RunRanksOk(Make(kRanks), [&](Communicator& world) {
    const auto row = world.Split(world.rank() / 2, 0), column = world.Split(world.rank() % 2, 0);
    const std::array<Communicator*, 3> groups = {&world, row.get(), column.get()};
    // Ranks of the world in each of my groups.
    const std::array<std::vector<int>, 3> members = {
        std::vector{0, 1, 2, 3}, std::vector{world.rank() / 2 * 2, world.rank() / 2 * 2 + 1},
        std::vector{world.rank() % 2, world.rank() % 2 + 2}};
    for (uint64_t step = 0; step < 400; ++step) {
      const size_t g = Mix(step, 1) % 3;
      Communicator& c = *groups[g];
      const int64_t count = Mix(step, 2) % (step % 8 == 0 ? 20000 : 40);
      const DType dtype = kAllDTypes[Mix(step, 3) % (kAllDTypes.size() - 1)];
      const int64_t bytes = count * DTypeSize(dtype);
      const int n = c.size();
      std::vector<Bytes> inputs;
      for (int r : members[g]) inputs.push_back(RandomElements(dtype, count * n, step, r));
      const Bytes& mine = inputs[c.rank()];
      Bytes out(bytes * n), expected(bytes * n);
      switch (Mix(step, 4) % 5) {
        case 0:
          c.AllReduce(mine.data(), out.data(), count * n, dtype, ReduceOp::kSum);
          expected = ReduceSerially(dtype, ReduceOp::kSum, inputs);
          break;
        case 1:
          out.resize(bytes);
          c.ReduceScatter(mine.data(), out.data(), count, dtype, ReduceOp::kMax);
          expected = Slice(ReduceSerially(dtype, ReduceOp::kMax, inputs), c.rank() * bytes, bytes);
          break;
        case 2:
          c.AllGather(mine.data(), out.data(), count, dtype);
          for (int r = 0; r < n; ++r) {
            std::copy_n(inputs[r].begin(), bytes, expected.begin() + r * bytes);
          }
          break;
        case 3:
          c.AllToAll(mine.data(), out.data(), count, dtype);
          for (int r = 0; r < n; ++r) {
            std::copy_n(inputs[r].begin() + c.rank() * bytes, bytes, expected.begin() + r * bytes);
          }
          break;
        case 4:
          out = mine;
          expected = inputs[step % n];
          c.Broadcast(out.data(), count * n, dtype, static_cast<int>(step % n));
          break;
      }
      ASSERT_TRUE(out == expected) << "step " << step;
    }
  });
}

}  // namespace shardc
