/* What a researcher would write by hand: two workers, the second `slow` times slower, and the norm of the gradient at
   every step. Built with -O3 -march=native. */
#include <math.h>
#include <string.h>

static void quadratic(int d, const double *h, const double *c, const double *x, double *g) {
    for (int i = 0; i < d; i++) {
        double s = -c[i];
        for (int j = 0; j < d; j++) s += h[i * d + j] * x[j];
        g[i] = s;
    }
}

static void logistic(int m, int d, const double *a, const double *y, const double *x, double *g) {
    memset(g, 0, d * sizeof(double));
    for (int k = 0; k < m; k++) {
        const double *row = a + k * d;
        double z = 0;
        for (int j = 0; j < d; j++) z += row[j] * x[j];
        double w = -y[k] / (1 + exp(y[k] * z)) / m;
        for (int j = 0; j < d; j++) g[j] += w * row[j];
    }
}

static double norm(int d, const double *g) {
    double s = 0;
    for (int i = 0; i < d; i++) s += g[i] * g[i];
    return sqrt(s);
}

#define LOOP(GRADIENT_AT)                                                                                      \
    double points[2][64], g[64], last = 0;                                                                     \
    memcpy(points[0], x, d * sizeof(double));                                                                  \
    memcpy(points[1], x, d * sizeof(double));                                                                  \
    for (long t = 0; t < steps; t++) {                                                                         \
        int w = t % (slow + 1) == slow - 1;                                                                    \
        GRADIENT_AT(points[w]);                                                                                \
        for (int i = 0; i < d; i++) x[i] -= eta * g[i];                                                        \
        memcpy(points[w], x, d * sizeof(double));                                                              \
        GRADIENT_AT(x);                                                                                        \
        norms[t] = last = norm(d, g);                                                                          \
    }                                                                                                          \
    return last;

double run_quadratic(int d, const double *h, const double *c, double *x, double eta, int slow, long steps,
                     double *norms) {
#define AT(p) quadratic(d, h, c, p, g)
    LOOP(AT)
#undef AT
}

double run_logistic(int m, int d, const double *a, const double *y, double *x, double eta, int slow, long steps,
                    double *norms) {
#define AT(p) logistic(m, d, a, y, p, g)
    LOOP(AT)
#undef AT
}
