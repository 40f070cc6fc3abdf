#include "runtime/mpi/mesh.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <sstream>
#include <utility>

#include "ir/diagnostic.h"

namespace shardc::mpi {
namespace {

constexpr double kConnectSeconds = 10;

struct Hello {
  uint64_t cookie;
  int32_t from, to;
};

Diagnostic NoConnection(int rank, int peer, const std::string& what) {
  return Diagnostic("E4312", ExitCode::kIo, StrCat("rank ", rank),
                    StrCat("cannot connect to rank ", peer, ": ", what),
                    "ranks need TCP connections to each other: is there a firewall between them?");
}

bool Ready(int fd, short events, double seconds) {
  pollfd p{fd, events, 0};
  int n;
  do {
    n = poll(&p, 1, static_cast<int>(seconds * 1000));
  } while (n < 0 && errno == EINTR);
  return n > 0;
}

void SetOptions(int fd) {
  auto set = [fd](int level, int name, int value) {
    setsockopt(fd, level, name, &value, sizeof(value));
  };
  // A machine that vanishes sends nothing: the kernel's probes find it out.
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 1);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 1);
  set(IPPROTO_TCP, TCP_KEEPCNT, 1);
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  timeval limit{static_cast<time_t>(kConnectSeconds), 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
}

// Both sides must agree that this is the connection they mean: another program, or another network
// namespace, may own the same address. The one that connects says so twice: what it gave up before
// it heard the answer must not be taken for its connection.
bool Greet(const Socket& socket, const Hello& hello) {
  Hello answer{};
  return socket.Write(&hello, sizeof(hello)) && socket.Read(&answer, sizeof(answer)) &&
         answer.cookie == hello.cookie && answer.from == hello.to && answer.to == hello.from &&
         socket.Write(&hello, sizeof(hello));
}

Socket TryConnect(const std::string& address, uint16_t port, const Hello& hello) {
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(port);
  if (inet_pton(AF_INET, address.c_str(), &to.sin_addr) != 1) return {};
  Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  int code = connect(socket.fd(), reinterpret_cast<sockaddr*>(&to), sizeof(to));
  if (code != 0 && errno == EINPROGRESS && Ready(socket.fd(), POLLOUT, 2)) {
    socklen_t length = sizeof(code);
    getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &code, &length);
  }
  if (code != 0) return {};
  int blocking = ::fcntl(socket.fd(), F_GETFL) & ~O_NONBLOCK;
  ::fcntl(socket.fd(), F_SETFL, blocking);
  SetOptions(socket.fd());
  if (!Greet(socket, hello)) return {};
  return socket;
}

Socket ConnectTo(const std::string& listener, const Hello& hello) {
  std::istringstream in(listener);
  uint16_t port = 0;
  in >> port;
  std::string address;
  while (in >> address) {
    Socket socket = TryConnect(address, port, hello);
    if (socket.fd() >= 0) return socket;
  }
  throw NoConnection(hello.from, hello.to, "no answer at its addresses and port " + listener);
}

}  // namespace

Socket::~Socket() {
  if (fd_ >= 0) close(fd_);
}

Socket& Socket::operator=(Socket&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

bool Socket::Write(const void* data, size_t bytes) const {
  const char* at = static_cast<const char*>(data);
  while (bytes > 0) {
    ssize_t n = send(fd_, at, bytes, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    at += n;
    bytes -= static_cast<size_t>(n);
  }
  return true;
}

bool Socket::Read(void* data, size_t bytes) const {
  char* at = static_cast<char*>(data);
  while (bytes > 0) {
    ssize_t n = recv(fd_, at, bytes, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    at += n;
    bytes -= static_cast<size_t>(n);
  }
  return true;
}

Listener::Listener() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in any{};
  any.sin_family = AF_INET;
  any.sin_addr.s_addr = htonl(INADDR_ANY);
  socklen_t length = sizeof(any);
  auto* address = reinterpret_cast<sockaddr*>(&any);
  if (socket_.fd() < 0 || bind(socket_.fd(), address, length) != 0 ||
      listen(socket_.fd(), SOMAXCONN) != 0 || getsockname(socket_.fd(), address, &length) != 0) {
    throw Diagnostic("E4312", ExitCode::kIo, "MPI", StrCat("cannot listen: ", strerror(errno)));
  }
  port_ = ntohs(any.sin_port);
}

std::string Listener::Describe() const {
  std::string loopback, others;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) == 0) {
    for (ifaddrs* i = list; i; i = i->ifa_next) {
      if (!i->ifa_addr || i->ifa_addr->sa_family != AF_INET || !(i->ifa_flags & IFF_UP)) continue;
      char text[INET_ADDRSTRLEN] = "";
      inet_ntop(AF_INET, &reinterpret_cast<sockaddr_in*>(i->ifa_addr)->sin_addr, text,
                sizeof(text));
      ((i->ifa_flags & IFF_LOOPBACK) ? loopback : others) += StrCat(" ", text);
    }
    freeifaddrs(list);
  }
  return StrCat(port_, loopback, others);
}

Socket Listener::Accept(double seconds) const {
  if (!Ready(socket_.fd(), POLLIN, seconds)) return {};
  Socket socket(accept4(socket_.fd(), nullptr, nullptr, SOCK_CLOEXEC));
  if (socket.fd() >= 0) SetOptions(socket.fd());
  return socket;
}

std::vector<Socket> ConnectAll(const Listener& mine, int rank, int n, uint64_t cookie,
                               const std::vector<std::string>& listeners) {
  std::vector<Socket> sockets(static_cast<size_t>(n));
  for (int peer = 0; peer < rank; ++peer) {
    sockets[peer] = ConnectTo(listeners[peer], {cookie, rank, peer});
  }
  for (int missing = n - 1 - rank; missing > 0;) {
    Socket socket = mine.Accept(kConnectSeconds);
    if (socket.fd() < 0) {
      int peer = rank + 1;
      while (sockets[peer].fd() >= 0) ++peer;
      throw NoConnection(rank, peer, "it did not come");
    }
    Hello hello{};
    if (!socket.Read(&hello, sizeof(hello)) || hello.cookie != cookie || hello.to != rank ||
        hello.from <= rank || hello.from >= n) {
      continue;
    }
    Hello answer{cookie, rank, hello.from};
    if (!socket.Write(&answer, sizeof(answer)) || !socket.Read(&hello, sizeof(hello))) continue;
    Socket& slot = sockets[hello.from];
    missing -= slot.fd() < 0;
    slot = std::move(socket);
  }
  return sockets;
}

}  // namespace shardc::mpi
