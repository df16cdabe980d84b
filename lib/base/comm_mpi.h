/* Internal: the MPI transport of comm.h, in builds with MPI=1. */
#ifndef VPTQ_BASE_COMM_MPI_H
#define VPTQ_BASE_COMM_MPI_H

#include "lib/base/comm.h"

/* Joins MPI_COMM_WORLD if a launcher started this process, and fills the rest of *c. */
vptq_status vptq_comm_mpi_open(vptq_comm *c, vptq_err *err) VPTQ_MUST_CHECK;

#endif
