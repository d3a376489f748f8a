"""RL Zoo and ``sb3-per compare`` know the algorithms of SBX, which use the hyperparameter files of the same names."""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

pytest.importorskip("rl_zoo3", reason="needs the extra zoo")
pytest.importorskip("sbx", reason="needs the extra sbx")

from sb3_per.compare.task import Task
from sb3_per.zoo import class_of, config_path, main, registry
from sb3_per.zoo.registry import COMPILED, register


def test_hyperparameter_files_are_those_of_pytorch_and_fit_the_constructors_of_sbx():
    assert config_path("sbx_sac") == config_path("sac") and config_path("sac").exists()
    of_zoo = {"n_timesteps", "env_wrapper", "frame_stack", "normalize", "n_envs", "noise_type", "noise_std", "callback"}
    for algo in COMPILED:
        assert config_path(algo) == config_path(algo.removeprefix("sbx_"))
        parameters = {*inspect.signature(class_of(algo)).parameters, *of_zoo}
        for name, entry in yaml.safe_load(config_path(algo).read_text()).items():
            assert entry.keys() <= parameters, f"{algo}, {name}"


def test_names_are_those_of_our_classes_and_of_sbx():
    import sbx
    from rl_zoo3.utils import ALGOS

    import sb3_per.sbx

    before = dict(ALGOS)
    try:
        register(sbx=True)
        for algo, name in COMPILED.items():
            assert ALGOS[algo] is getattr(sb3_per.sbx, name)
            assert ALGOS[algo.replace("per_", "")] is getattr(sbx, name.removeprefix("PER"))
    finally:
        ALGOS.clear()
        ALGOS.update(before)


def test_a_variant_without_a_stock_class_in_sbx_is_registered_alone(monkeypatch):
    from rl_zoo3.hyperparams_opt import HYPERPARAMS_CONVERTER, HYPERPARAMS_SAMPLER
    from rl_zoo3.utils import ALGOS

    import sb3_per.sbx

    class PERVariant(sb3_per.sbx.PERSAC):
        pass

    monkeypatch.setattr(sb3_per.sbx, "PERVariant", PERVariant, raising=False)
    for names in (registry.COMPILED, registry.PRIORITIZED):
        monkeypatch.setitem(names, "sbx_per_variant", "PERVariant")
    before = [(table, dict(table)) for table in (ALGOS, HYPERPARAMS_SAMPLER, HYPERPARAMS_CONVERTER)]
    try:
        register(sbx=True)
        assert ALGOS["sbx_per_variant"] is PERVariant
        assert "sbx_sac" in ALGOS and "sbx_variant" not in ALGOS
    finally:
        for table, content in before:
            table.clear()
            table.update(content)


@pytest.mark.slow
def test_other_commands_do_not_load_jax():
    code = "import sys; from sb3_per.zoo import register; register(); print('jax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_comparison_pairs_ours_with_the_stock_class_of_sbx():
    for algo in ("sbx_sac", "sbx_per_sac"):
        task = Task(algo, "Pendulum-v1")
        assert (task.stock_algo, task.require_our_algo()) == ("sbx_sac", "sbx_per_sac")
    assert Task("sbx_sac", "Pendulum-v1").config == Task("sac", "Pendulum-v1").config
    assert Task("sbx_per_sac", "Pendulum-v1").config == Task("per_sac", "Pendulum-v1").config


@pytest.mark.slow
def test_train_and_enjoy(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    entry = dict(n_timesteps=60, policy="MlpPolicy", learning_starts=20, batch_size=8, buffer_size=100)
    entry.update(policy_kwargs="dict(net_arch=[4])", replay_buffer_kwargs="dict(alpha=0.5)")
    Path("own.yml").write_text(yaml.safe_dump({"CartPole-v1": entry}))
    command = (
        "train --algo sbx_per_dqn --env CartPole-v1 -conf own.yml --eval-freq -1 --save-freq 40 --save-replay-buffer -f logs"
    )
    main(command.split())
    (run,) = Path("logs", "sbx_per_dqn").glob("CartPole-v1_*")
    assert (run / "CartPole-v1.zip").exists() and list(run.glob("*.buffer"))
    main("enjoy --algo sbx_per_dqn --env CartPole-v1 -n 20 --no-render".split())
