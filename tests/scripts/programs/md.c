/* A molecular dynamics program in small: ranks share the work, rank 0 writes log and trajectory. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv) {
    const char *name = "md";
    int steps = 10, threads = 1, rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "-deffnm")) name = argv[i + 1];
        if (!strcmp(argv[i], "-nsteps")) steps = atoi(argv[i + 1]);
        if (!strcmp(argv[i], "-ntomp")) threads = atoi(argv[i + 1]);
    }
    char path[256];
    FILE *log = NULL, *trajectory = NULL;
    if (rank == 0) {
        snprintf(path, sizeof path, "%s.log", name);
        log = fopen(path, "w");
        snprintf(path, sizeof path, "%s.xtc", name);
        trajectory = fopen(path, "wb");
        if (!log || !trajectory) {
            fprintf(stderr, "cannot write %s\n", path);
            MPI_Abort(MPI_COMM_WORLD, 3);
        }
        fprintf(log, "Using %d MPI process%s, %d OpenMP threads\n", size, size > 1 ? "es" : "", threads);
    }
    double x = 1.0 + rank, total = 0;
    for (int step = 0; step < steps; step++) {
        double energy = x * x / 2;
        x -= 0.1 * x;
        MPI_Reduce(&energy, &total, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
        if (rank == 0 && step % 10 == 0) {
            fprintf(log, "step %d energy %.6f\n", step, total);
            fwrite(&total, sizeof total, 1, trajectory);
        }
    }
    if (rank == 0) {
        fprintf(log, "Finished mdrun on rank 0\n");
        fclose(log);
        fclose(trajectory);
        printf("step %d, energy %.6f\n", steps, total);
    }
    MPI_Finalize();
    return 0;
}
