// Memory that a thread of a team cannot have.
#ifndef RUNTIME_CPU_KERNELS_TEAM_MEMORY_H_
#define RUNTIME_CPU_KERNELS_TEAM_MEMORY_H_

namespace shardc::cpu {

// std::bad_alloc, thrown by code that is not made for one instruction set.
[[noreturn]] void ThrowNoMemory();

// Makes the calling thread's team, and has each of its threads do once what takes memory on first
// use. Throws std::system_error when there are no more threads: libgomp would end the process.
void MakeTeam(int threads);

// Throws std::bad_alloc where a library that is about to make code would have no memory for it:
// oneDNN does not look.
void CheckRoomForCode();

}  // namespace shardc::cpu

#endif  // RUNTIME_CPU_KERNELS_TEAM_MEMORY_H_
