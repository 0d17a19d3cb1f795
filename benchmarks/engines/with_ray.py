"""Ray's documented parameter server: an actor holds the model, workers compute, the driver passes references around.

After "Parameter Server" in Ray's documentation, the asynchronous variant, for one flat vector.
"""

from __future__ import annotations

import os
import sys
import tempfile

from workload import STEP, WORKERS, Meter

# Settings of Ray, which must be set before Ray is imported: no usage reports, this machine only.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")


class Cluster:
    """Run Ray on this machine while the context is open."""

    def __enter__(self):
        import ray

        self._folder = tempfile.TemporaryDirectory(prefix="ray")
        here = os.path.dirname(os.path.abspath(__file__))
        ray.init(
            address="local",
            num_cpus=WORKERS + 1,
            include_dashboard=False,
            logging_level="error",
            log_to_driver=False,
            object_store_memory=2 * 1024**3,
            _temp_dir=self._folder.name,
            runtime_env={"env_vars": {"PYTHONPATH": here, "OMP_NUM_THREADS": "1"}},
        )
        return self

    def __exit__(self, *_):
        import ray

        ray.shutdown()
        self._folder.cleanup()


def parameter_server(task, seconds: float, server_on: str = "", workers_on: str = "") -> float:
    """Return updates per second, seen by the driver. ``server_on`` and ``workers_on`` are resources that place them."""
    import ray

    @ray.remote
    class ParameterServer:
        def __init__(self, x):
            self.x = x.copy()

        def apply_gradients(self, gradient):
            self.x -= STEP * gradient
            return self.x

        def get_weights(self):
            return self.x

    @ray.remote
    class DataWorker:
        def __init__(self, task, worker):
            if "torch" in sys.modules:  # the task has imported it
                sys.modules["torch"].set_num_threads(1)
            self.task, self.worker, self.seed = task, worker, worker

        def compute_gradients(self, weights):
            self.seed += WORKERS
            return self.task.update(weights, self.worker, self.seed)

    here, away = ({"resources": {name: 1}} if name else {} for name in (server_on, workers_on))
    server = ParameterServer.options(**here).remote(task.initial())
    workers = [DataWorker.options(**away).remote(task, worker) for worker in range(WORKERS)]
    weights = server.get_weights.remote()
    gradients = {worker.compute_gradients.remote(weights): worker for worker in workers}
    ray.wait(list(gradients), num_returns=WORKERS, timeout=120)
    meter, over = Meter(seconds), False
    while not over:
        [ready], _ = ray.wait(list(gradients))
        worker = gradients.pop(ready)
        weights = server.apply_gradients.remote(ready)
        gradients[worker.compute_gradients.remote(weights)] = worker
        over = meter.tick()
    ray.wait(list(gradients), num_returns=WORKERS, timeout=120)  # otherwise Ray logs errors
    for actor in (server, *workers):
        ray.kill(actor)
    return meter.per_second
