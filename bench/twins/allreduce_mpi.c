/* MPI_Allreduce by size: arguments BYTES:ROUNDS... fp32, in place. Rank 0 prints one JSON line a
 * size: {"bytes", "p50_us"}; a call's time is the maximum over ranks, from a common barrier. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int Compare(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank, size;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (int k = 1; k < argc; ++k) {
    long bytes;
    int rounds;
    if (sscanf(argv[k], "%ld:%d", &bytes, &rounds) != 2) {
      fprintf(stderr, "not BYTES:ROUNDS: %s\n", argv[k]);
      MPI_Abort(MPI_COMM_WORLD, 64);
    }
    const int count = (int)(bytes / 4);
    float* values = malloc((size_t)bytes);
    double* times = malloc(sizeof(double) * (size_t)rounds);
    for (int i = 0; i < count; ++i) values[i] = (float)(rank + 1);
    MPI_Allreduce(MPI_IN_PLACE, values, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    for (int i = 0; i < count; ++i) {
      if (values[i] != (float)(size * (size + 1) / 2)) MPI_Abort(MPI_COMM_WORLD, 70);
      values[i] = 0;
    }
    for (int i = 0; i < rounds + 3; ++i) {
      MPI_Barrier(MPI_COMM_WORLD);
      const double start = MPI_Wtime();
      MPI_Allreduce(MPI_IN_PLACE, values, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
      if (i >= 3) times[i - 3] = MPI_Wtime() - start;
    }
    MPI_Allreduce(MPI_IN_PLACE, times, rounds, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    qsort(times, (size_t)rounds, sizeof(double), Compare);
    if (rank == 0) {
      printf("{\"bytes\": %ld, \"p50_us\": %.3f}\n", bytes, times[rounds / 2] * 1e6);
      fflush(stdout);
    }
    free(times);
    free(values);
  }
  MPI_Finalize();
  return 0;
}
