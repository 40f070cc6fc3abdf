"""Python environments of the benchmarks and of the zoo. Standard library only."""
import shutil
import subprocess
import sys

TORCH = "torch==2.9.1"
CPU_WHEELS = "https://download.pytorch.org/whl/cpu"
PACKAGES = ["transformers==4.57.1", "onnx==1.22.0", "onnxscript==0.7.2", "onnxruntime==1.31.1", "safetensors==0.8.0", "numpy==2.4.6"]


def make(folder):
    """Installs PyTorch and what exports and runs its models into `folder`, unless it is there; returns its Python."""
    python = folder / "bin/python"
    if (folder / "complete").exists():
        return python
    print(f"making {folder} ...", file=sys.stderr)
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    # PyPI's torch brings the CUDA libraries along: only where the small one cannot be had.
    if subprocess.run([*pip, TORCH, "--index-url", CPU_WHEELS]).returncode != 0:
        subprocess.run([*pip, TORCH], check=True)
    subprocess.run([*pip, *PACKAGES], check=True)
    (folder / "complete").touch()
    return python
