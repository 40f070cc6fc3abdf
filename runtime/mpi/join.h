// The one function of the plugin libshardc_mpi.so.
#pragma once

#include "runtime/processes.h"

// The caller owns the result. Throws as shardc::JoinMpi. The name changes with the interface.
extern "C" shardc::Processes* shardc_join_mpi();
