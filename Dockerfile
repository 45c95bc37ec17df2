# Serves over HTTP on port 8000, as a user without rights.
#   docker build -t bestfirst .                    for CPUs
#   docker build -t bestfirst --target cuda .      for NVIDIA GPUs
# tests/docs/test_containers.py runs these steps where there is no container runtime.

FROM python:3.12-slim AS source
WORKDIR /source
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
COPY benchmarks benchmarks

FROM source AS build
RUN python -m venv /opt/bestfirst
RUN /opt/bestfirst/bin/python -m pip install --no-cache-dir -c constraints.txt ".[serve]"

FROM source AS build-cuda
RUN python -m venv /opt/bestfirst
RUN /opt/bestfirst/bin/python -m pip install --no-cache-dir -c constraints.txt ".[serve,transformers]" "triton>=3.3"

FROM python:3.12-slim AS user
RUN useradd --create-home --uid 10001 bestfirst
ENV PATH=/opt/bestfirst/bin:$PATH PYTHONUNBUFFERED=1
WORKDIR /home/bestfirst
USER bestfirst
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/health', timeout=2)"]
ENTRYPOINT ["bestfirst"]

FROM user AS cuda
COPY --from=build-cuda /opt/bestfirst /opt/bestfirst
CMD ["serve", "--host", "0.0.0.0", "--device", "cuda"]

FROM user AS cpu
COPY --from=build /opt/bestfirst /opt/bestfirst
CMD ["serve", "--host", "0.0.0.0"]
