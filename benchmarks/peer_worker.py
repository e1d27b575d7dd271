"""Worker of one peer in its own environment: `python peer_worker.py LIBRARY DTYPE` prints a line of JSON.

Measures CPU milliseconds of one training step (gradient and Adam) of a sparse variational GP with M = 100 inducing
points on a minibatch of 1,000 rows with 8 inputs, of a two-layer deep GP if the library has one, and of predicting
10,000 rows. Everything is trained, as in ours: inducing inputs, variational distribution, kernel and noise.
"""

import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "TF_NUM_INTRAOP_THREADS"):
    os.environ[variable] = "1"
os.environ["TF_NUM_INTEROP_THREADS"] = "1"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["TF_USE_LEGACY_KERAS"] = "1"  # GPflux is written for Keras 2
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})

import json
import sys
import time
import warnings

import numpy as np

M, B, D, NUM_NEW = 100, 1_000, 8, 10_000
STEPS, REPEATS = 30, 5


def data(dtype):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((B, D)).astype(dtype)
    return X, np.sin(X[:, :1]), X[:M].copy(), rng.standard_normal((NUM_NEW, D)).astype(dtype)


def cpu_ms(function, calls: int) -> float:
    """CPU milliseconds per call, the smallest of several repeats."""
    function()
    best = float("inf")
    for _ in range(REPEATS):
        began = time.process_time()
        for _ in range(calls):
            function()
        best = min(best, (time.process_time() - began) / calls)
    return best * 1e3


def gpytorch_worker(dtype):
    import gpytorch
    import torch
    from gpytorch.models.deep_gps import DeepGP, DeepGPLayer
    from gpytorch.variational import CholeskyVariationalDistribution, VariationalStrategy

    torch.set_num_threads(1)
    torch.set_default_dtype(getattr(torch, dtype))
    X, y, Z, X_new = (torch.tensor(a) for a in data(dtype))
    y = y[:, 0]

    def kernel(shape=()):
        batch = torch.Size(shape)
        rbf = gpytorch.kernels.RBFKernel(ard_num_dims=D, batch_shape=batch)
        return gpytorch.kernels.ScaleKernel(rbf, batch_shape=batch)

    class Sparse(gpytorch.models.ApproximateGP):
        def __init__(self):
            strategy = VariationalStrategy(self, Z, CholeskyVariationalDistribution(M), learn_inducing_locations=True)
            super().__init__(strategy)
            self.mean_module, self.covar_module = gpytorch.means.ZeroMean(), kernel()

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    class Layer(DeepGPLayer):
        def __init__(self, output_dims):
            shape = () if output_dims is None else (output_dims,)
            distribution = CholeskyVariationalDistribution(M, batch_shape=torch.Size(shape))
            strategy = VariationalStrategy(self, Z.expand(*shape, M, D).clone(), distribution)
            super().__init__(strategy, D, output_dims)
            self.mean_module = gpytorch.means.ZeroMean() if output_dims is None else gpytorch.means.LinearMean(D)
            self.covar_module = kernel(shape)

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    class Two(DeepGP):
        def __init__(self):
            super().__init__()
            self.hidden, self.last = Layer(D), Layer(None)

        def forward(self, x):
            return self.last(self.hidden(x))

    def stepper(model, deep):
        likelihood = gpytorch.likelihoods.GaussianLikelihood()
        bound = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=B)
        bound = gpytorch.mlls.DeepApproximateMLL(bound) if deep else bound
        adam = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=0.01)

        def step():
            adam.zero_grad()
            with gpytorch.settings.num_likelihood_samples(1):
                (-bound(model(X), y).sum()).backward()
            adam.step()

        return step

    sparse = Sparse()
    result = {"svgp": cpu_ms(stepper(sparse, False), STEPS), "two layers": cpu_ms(stepper(Two(), True), STEPS // 3)}

    def predict():
        sparse.train()  # leaving training mode clears what is cached
        sparse.eval()
        with torch.no_grad():
            for part in X_new.split(2_000):
                f = sparse(part)
                _ = f.mean, f.variance

    return result | {"predict": cpu_ms(predict, 3)}


def gpflow_worker(dtype):
    import gpflow
    import tensorflow as tf

    gpflow.config.set_default_float(np.dtype(dtype).type)
    X, y, Z, X_new = data(dtype)
    kernel = gpflow.kernels.SquaredExponential(lengthscales=np.ones(D, dtype))
    model = gpflow.models.SVGP(kernel, gpflow.likelihoods.Gaussian(), Z, num_data=B)
    adam = tf.optimizers.Adam(0.01)

    @tf.function
    def step():
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(model.trainable_variables)
            loss = model.training_loss((X, y))
        gradients = tape.gradient(loss, model.trainable_variables)
        adam.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    predict = tf.function(model.predict_f)
    return {"svgp": cpu_ms(step, STEPS), "predict": cpu_ms(lambda: predict(X_new), 3)}


def gpflux_worker(dtype):
    import gpflow
    import tensorflow as tf
    from gpflux.architectures import Config, build_constant_input_dim_deep_gp

    gpflow.config.set_default_float(np.dtype(dtype).type)
    tf.keras.backend.set_floatx(dtype)
    X, y, _, _ = data(dtype)
    config = Config(num_inducing=M, inner_layer_qsqrt_factor=1e-5, likelihood_noise_variance=0.1, whiten=True)
    deep = build_constant_input_dim_deep_gp(X, num_layers=2, config=config)
    model = deep.as_training_model()
    adam = tf.optimizers.Adam(0.01)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            model((X, y), training=True)
            loss = tf.add_n(model.losses)
        gradients = tape.gradient(loss, model.trainable_variables)
        adam.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    return {"two layers": cpu_ms(step, STEPS // 3)}


def gpjax_worker(dtype):
    import jax

    jax.config.update("jax_enable_x64", dtype == "float64")
    import equinox as eqx
    import gpjax as gpx
    import jax.numpy as jnp
    import optax

    X, y, Z, _ = (jnp.asarray(a) for a in data(dtype))
    prior = gpx.gps.Prior(mean_function=gpx.mean_functions.Zero(), kernel=gpx.kernels.RBF(lengthscale=jnp.ones(D)))
    q = gpx.variational_families.WhitenedVariationalGaussian(
        model=prior * gpx.likelihoods.Gaussian(), inducing_inputs=Z
    )
    dataset = gpx.Dataset(X=X, y=y)

    @eqx.filter_jit
    def steps(q):
        objective = lambda model, batch: -gpx.objectives.elbo(model, batch)  # noqa: E731
        return gpx.fit(
            model=q,
            objective=objective,
            train_data=dataset,
            optim=optax.adam(0.01),
            num_iters=STEPS,
            verbose=False,
            safe=False,
        )

    def train():
        jax.block_until_ready(jax.tree.leaves(eqx.filter(steps(q), eqx.is_array)))

    return {"svgp": cpu_ms(train, 1) / STEPS}


def sklearn_worker(dtype):
    """Exact GP on the same 1,000 rows: a log marginal likelihood with its gradient, which a fit repeats many times."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    X, y, _, X_new = data("float64")
    kernel = ConstantKernel(1.0) * RBF(np.ones(D)) + WhiteKernel(0.1)
    model = GaussianProcessRegressor(kernel, optimizer=None).fit(X, y)
    theta = model.kernel_.theta
    step = cpu_ms(lambda: model.log_marginal_likelihood(theta, eval_gradient=True, clone_kernel=False), 1)
    return {"exact GP": step, "predict": cpu_ms(lambda: model.predict(X_new, return_std=True), 1)}


def bsgp_worker(dtype):
    sys.path.insert(0, os.path.dirname(__file__))
    import jax
    import jax.numpy as jnp
    import jax.random as jr

    jax.config.update("jax_enable_x64", True)
    from bsgp import Posterior
    from bsgp.models.likelihoods.gaussian_noise import gaussian
    from step import cpu_milliseconds, init_deep_gp, products, sghmc_update

    measured = cpu_milliseconds(
        {
            "floor": products(M, B, dtype),
            "svgp": sghmc_update(M, B, D, 1, dtype),
            "two layers": sghmc_update(M, B, D, 2, dtype),
        },
        REPEATS,
    )
    X, _, _, X_new = data(dtype)
    model = init_deep_gp(X, gaussian(1, dtype), jr.key(0), num_inducing=M)
    for draws in (1, 16, 256):
        stacked = jax.tree.map(lambda x, s=draws: jnp.broadcast_to(x, (1, s, *x.shape)), model)
        posterior = Posterior(stacked)
        name = "predict" if draws == 1 else f"predict, {draws} draws"
        measured[name] = cpu_ms(lambda p=posterior: p.predict(X_new, jr.key(0)), 3 if draws < 100 else 1)
    return measured


WORKERS = {
    "bsgp": bsgp_worker,
    "gpytorch": gpytorch_worker,
    "gpflow": gpflow_worker,
    "gpflux": gpflux_worker,
    "gpjax": gpjax_worker,
    "sklearn": sklearn_worker,
}

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    library, dtype = sys.argv[1:]
    print(json.dumps(WORKERS[library](dtype)))
