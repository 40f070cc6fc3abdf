// A socket between every two processes of a world, beside MPI: it tells at once when a process is
// gone, which MPI does not, and carries the reason when a rank aborts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace shardc::mpi {

class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  ~Socket();
  Socket(Socket&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  Socket& operator=(Socket&& other) noexcept;

  int fd() const { return fd_; }
  // All of it, or false.
  bool Write(const void* data, size_t bytes) const;
  bool Read(void* data, size_t bytes) const;

 private:
  int fd_ = -1;
};

// Listens for all worlds of this process.
class Listener {
 public:
  Listener();
  // Port and addresses (IPv4) of this machine, for others to connect to.
  std::string Describe() const;
  Socket Accept(double seconds) const;  // an empty one when nobody came

 private:
  Socket socket_;
  uint16_t port_ = 0;
};

// Connects the processes 0 .. n-1; result[r] leads to process r, the own one is empty. `listeners`
// are everybody's Describe(); `cookie` is the same on all, and new for every world. Throws
// Diagnostic E4312.
std::vector<Socket> ConnectAll(const Listener& mine, int rank, int n, uint64_t cookie,
                               const std::vector<std::string>& listeners);

}  // namespace shardc::mpi
