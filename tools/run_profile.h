// What `run --profile` shows: tables for people, and a trace for chrome://tracing and Perfetto.
#pragma once

#include <string>

#include "runtime/profile.h"

namespace shardc {

// Part of the time that matrix products take; 0 for an empty profile.
double GemmShare(const Profile& profile);

// By op, by layer, and collectives by rank: the mean over ranks of one step.
std::string ProfileTables(const Profile& profile);

// Trace events in JSON: a process per rank; a complete event per step, in it one per instruction,
// in those of collectives one for the time that the rank waited for its peers. Throws Diagnostic
// E5003, E5004.
void WriteTrace(const Profile& profile, const std::string& path);

}  // namespace shardc
