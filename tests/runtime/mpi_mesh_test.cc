// The sockets beside MPI, without MPI: processes are threads here.
#include <gmock/gmock.h>

#include <thread>

#include "ir/diagnostic.h"
#include "runtime/mpi/mesh.h"
#include "tests/ir/thrown.h"

namespace shardc::mpi {
namespace {

using ::testing::HasSubstr;

TEST(MpiMesh, ConnectsEverybodyWithEverybody) {
  constexpr int kRanks = 5;
  std::vector<Listener> listeners(kRanks);
  std::vector<std::string> addresses;
  for (const Listener& l : listeners) addresses.push_back(l.Describe());
  std::vector<std::vector<Socket>> sockets(kRanks);
  std::vector<std::thread> threads;
  for (int r = 0; r < kRanks; ++r) {
    threads.emplace_back([&, r] {
      const auto at = static_cast<size_t>(r);
      sockets[at] = ConnectAll(listeners[at], r, kRanks, 77, addresses);
    });
  }
  for (std::thread& t : threads) t.join();
  for (int a = 0; a < kRanks; ++a) {
    for (int b = 0; b < kRanks; ++b) {
      const Socket& to = sockets[a][b];
      EXPECT_EQ(to.fd() >= 0, a != b);
      if (a == b) continue;
      const int sent = 100 * a + b;
      EXPECT_TRUE(to.Write(&sent, sizeof(sent)));
      int got = -1;
      EXPECT_TRUE(sockets[b][a].Read(&got, sizeof(got)));
      EXPECT_EQ(got, sent);
    }
  }
}

// Those who greet with the wrong word, or leave before they have heard the answer, are nobody.
TEST(MpiMesh, StrangersAreIgnored) {
  Listener zero, one;
  const std::vector<std::string> addresses = {zero.Describe(), one.Describe()};
  std::vector<Socket> of_zero;
  std::thread accepting([&] { of_zero = ConnectAll(zero, 0, 2, 5, addresses); });
  EXPECT_THROW(ConnectAll(one, 1, 2, 6, addresses), Diagnostic);  // of another world
  const std::vector<Socket> of_one = ConnectAll(one, 1, 2, 5, addresses);
  accepting.join();
  int sent = 3, got = 0;
  EXPECT_TRUE(of_one[0].Write(&sent, sizeof(sent)));
  EXPECT_TRUE(of_zero[1].Read(&got, sizeof(got)));
  EXPECT_EQ(got, sent);
}

TEST(MpiMesh, NobodyAnswers) {
  std::string closed;
  {
    Listener gone;
    closed = gone.Describe();
    closed = closed.substr(0, closed.find(' ')) + " 127.0.0.1";
  }
  const Listener mine;
  const Diagnostic d = testing::Thrown([&] {
    ConnectAll(mine, 1, 2, 5, {closed, mine.Describe()});
  });
  EXPECT_EQ(d.id(), "E4312");
  EXPECT_EQ(d.code(), ExitCode::kIo);
  EXPECT_THAT(d.where(), HasSubstr("rank 1"));
  EXPECT_THAT(d.message(), HasSubstr("cannot connect to rank 0"));
  EXPECT_THAT(d.fix(), HasSubstr("firewall"));
}

}  // namespace
}  // namespace shardc::mpi
