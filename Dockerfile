# The demonstration in a container:  docker build -t gnn-repair . && docker run --rm gnn-repair
FROM python:3.11-slim
WORKDIR /app
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY gnn_repair gnn_repair
# The extra index has PyTorch without CUDA, gigabytes smaller: 2.13.0+cpu counts as newer than 2.13.0.
RUN pip install --no-cache-dir --constraint constraints.txt \
      --extra-index-url https://download.pytorch.org/whl/cpu . \
 && useradd --create-home user
USER user
WORKDIR /home/user
ENTRYPOINT ["gnn-repair"]
CMD ["demo"]
